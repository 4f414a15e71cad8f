/* Functions of f32 and the 16-bit formats, written once and read twice: with one lane and with
   sixteen. So a value never depends on whether it was computed beside others.
   F, I, U: the types; K(c): a constant in every lane; LT, GE, EQ: masks; NAMED(f): f_f32, f_vf32. */

/* --- 16-bit formats: rounded half to even --- */

INLINE F NAMED(bf16)(F x) {
  U u = AS_U(x), odd = (u >> 16) & 1u;
  u = SELECT_U(EQ(x, x), u + 0x7fffu + odd, u | 0x400000u);
  return AS_F(u & 0xffff0000u);
}

INLINE F NAMED(wide_f16)(U h) {
  U size = h & 0x7fffu;
  U finite = AS_U(AS_F(size << 13) * 0x1p112f);
  return AS_F(SELECT_U(LT((I)size, 0x7c00), finite, finite | 0x7f800000u) | (h & 0x8000u) << 16);
}

INLINE U NAMED(bits_f16)(F x) {
  U u = AS_U(x), sign = u >> 16 & 0x8000u, size = u & 0x7fffffffu;
  U odd = size >> 13 & 1u;
  U normal = (size - (112u << 23) + 0xfffu + odd) >> 13;
  U small = AS_U(AS_F(size) + 0.5f) - (126u << 23);
  U special = SELECT_U(LT(0x7f800000, (I)size), (size >> 13 & 0x3ffu) | 0x7e00u, K_U(0x7c00u));
  U finite = SELECT_U(LT((I)size, 113 << 23), small, normal);
  return sign | SELECT_U(LT((I)size, 143 << 23), finite, special);
}

INLINE F NAMED(f16)(F x) { return NAMED(wide_f16)(NAMED(bits_f16)(x)); }

/* --- whole numbers --- */

INLINE F NAMED(abs)(F x) { return AS_F(AS_U(x) & 0x7fffffffu); }

INLINE F NAMED(signed)(F size, F x) { return AS_F(AS_U(size) | (AS_U(x) & 0x80000000u)); }

INLINE F NAMED(round)(F x) {
  F size = NAMED(abs)(x), whole = (size + 0x1p23f) - 0x1p23f;
  return NAMED(signed)(SELECT_F(LT(size, K(0x1p23f)), whole, size), x);
}

INLINE F NAMED(floor)(F x) {
  F whole = NAMED(round)(x);
  return SELECT_F(LT(x, whole), whole - 1.0f, whole);
}

INLINE F NAMED(ceil)(F x) { return -NAMED(floor)(-x); }

/* --- exponentials --- */

/* 2 to the power of n, for normal results. */
INLINE F NAMED(power_of_two)(I n) { return AS_F((U)(n + 127) << 23); }

/* Cody and Waite's reduction; the polynomial of Cephes' expf; two scalings, so that results that
   are not normal are rounded once. */
INLINE F NAMED(exp)(F x) {
  F low = SELECT_F(LT(x, K(-104.0f)), K(-104.0f), x);
  F t = SELECT_F(LT(K(89.0f), low), K(89.0f), low);
  F magic = NAMED(fma)(t, K(0x1.715476p0f), K(0x1.8p23f));
  I n = (I)(AS_U(magic) - 0x4b400000u);
  F k = magic - 0x1.8p23f;
  F r = NAMED(fma)(k, K(-0x1.62e400p-1f), t);
  r = NAMED(fma)(k, K(-0x1.7f7d1cp-20f), r);
  F p = NAMED(fma)(r, K(1.9875691500e-4f), K(1.3981999507e-3f));
  p = NAMED(fma)(p, r, K(8.3334519073e-3f));
  p = NAMED(fma)(p, r, K(4.1665795894e-2f));
  p = NAMED(fma)(p, r, K(1.6666665459e-1f));
  p = NAMED(fma)(p, r, K(5.0000001201e-1f));
  p = NAMED(fma)(p, r * r, r) + 1.0f;
  I half = n >> 1;
  return p * NAMED(power_of_two)(half) * NAMED(power_of_two)((I)((U)n - (U)half));
}

/* Near zero Cephes' polynomial, else 1 - 2 / (exp(2x) + 1). */
INLINE F NAMED(tanh)(F x) {
  F a = NAMED(abs)(x), s = a * a;
  F p = NAMED(fma)(s, K(-5.70498872745e-3f), K(2.06390887954e-2f));
  p = NAMED(fma)(p, s, K(-5.37397155531e-2f));
  p = NAMED(fma)(p, s, K(1.33314422036e-1f));
  p = NAMED(fma)(p, s, K(-3.33332819422e-1f));
  F near = NAMED(fma)(p * s, a, a);
  F far = 1.0f - 2.0f / (NAMED(exp)(a + a) + 1.0f);
  return NAMED(signed)(SELECT_F(LT(a, K(0.625f)), near, far), x);
}

/* Two polynomials of N. Juffa's (stackoverflow.com/questions/35148198), the second in an exp. */
INLINE F NAMED(erf)(F x) {
  F a = NAMED(abs)(x), t = SELECT_F(LT(K(4.0f), a), K(4.0f), a), s = t * t;
  F r = NAMED(fma)(t, K(-1.72853470e-5f), K(3.83197126e-4f));
  F u = NAMED(fma)(t, K(-3.88396438e-3f), K(2.42546219e-2f));
  r = NAMED(fma)(r, s, u);
  r = NAMED(fma)(r, t, K(-1.06777877e-1f));
  r = NAMED(fma)(r, t, K(-6.34846687e-1f));
  r = NAMED(fma)(r, t, K(-1.28717512e-1f));
  r = NAMED(fma)(r, t, -t);
  F far = 1.0f - NAMED(exp)(r);
  F p = NAMED(fma)(s, K(-5.96761703e-4f), K(4.99119423e-3f));
  p = NAMED(fma)(p, s, K(-2.67681349e-2f));
  p = NAMED(fma)(p, s, K(1.12819925e-1f));
  p = NAMED(fma)(p, s, K(-3.76125336e-1f));
  p = NAMED(fma)(p, s, K(1.28379166e-1f));
  F near = NAMED(fma)(p, t, t);
  return NAMED(signed)(SELECT_F(LT(K(0.927734375f), t), far, near), x);
}

/* --- logarithm: FreeBSD's e_logf.c --- */

INLINE F NAMED(log)(F x) {
  I tiny = LT(x, K(0x1p-126f));
  F t = SELECT_F(tiny, x * 0x1p25f, x);
  U u = AS_U(t) - 0x3f3504f3u;
  I n = (I)u >> 23;
  F f = AS_F((u & 0x7fffffu) + 0x3f3504f3u) - 1.0f;
  F s = f / (f + 2.0f), z = s * s, w = z * z;
  F r = z * (w * 0x91e9eep-25f + 0xaaaaaap-24f) + w * (w * 0xf89e26p-26f + 0xccce13p-25f);
  F k = TO_F(n) - SELECT_F(tiny, K(25.0f), K(0.0f)), square = f * f * 0.5f;
  F found = s * (square + r) + k * 0x1.2fefa2p-17f - square + f + k * 0x1.62e3p-1f;
  found = SELECT_F(EQ(t, K(__builtin_inff())), t, found);
  found = SELECT_F(EQ(x, K(0.0f)), K(-__builtin_inff()), found);
  return SELECT_F(GE(x, K(0.0f)), found, K(__builtin_nanf("")));
}
