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
