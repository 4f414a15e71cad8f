/* Functions of f32 made of an exponential, for every C-like language that has fma. A dialect reads
   this text with one lane and with all lanes, so a value never depends on what it was computed
   beside. It is given (see exponentials.py):
   F, U: f32 and 32-bit words; NAMED(f): the function's name; K(c): a constant in every lane;
   AS_F, AS_U: the same bits; FMA: one rounding; SELECT_F(m, a, b): a where m; LT(a, b): a mask;
   MOST(a, b), LEAST(a, b): a where it is greater, smaller, else b, so NaN in b stays;
   SCALEF(x, k), where the machine has it: x times 2 to the power of the whole number k, rounded
   once. */

/* Cody and Waite's reduction, t = n log(2) + r, then a polynomial for exp(r). `shifted` becomes
   n + 0x1.8p23, which holds n in its low bits. For t from -104 to 89. */
INLINE F NAMED(reduced_exp)(F t, F *shifted) {
  F s = FMA(t, K(0x1.715476p0f), K(0x1.8p23f)), k = s - 0x1.8p23f;
  F r = FMA(k, K(-0x1.62e400p-1f), t);
  r = FMA(k, K(-0x1.7f7d1cp-20f), r);
  F p = FMA(r, K(0x1.694000p-10f), K(0x1.125edcp-7f));
  p = FMA(p, r, K(0x1.555b5ap-5f));
  p = FMA(p, r, K(0x1.555450p-3f));
  p = FMA(p, r, K(0x1.fffff6p-2f));
  p = FMA(p, r, K(1.0f));
  *shifted = s;
  return FMA(p, r, K(1.0f));
}

/* Where neither the argument nor the result leaves the normal numbers. NaN gives anything. */
INLINE F NAMED(normal_exp)(F t) {
  F shifted, p = NAMED(reduced_exp)(t, &shifted);
  return AS_F(AS_U(p) + (AS_U(shifted) << 23));
}

/* Results that are not normal are rounded once: both ways of scaling give the same bits. */
INLINE F NAMED(exp)(F x) {
  F shifted, p = NAMED(reduced_exp)(LEAST(K(89.0f), MOST(K(-104.0f), x)), &shifted);
#ifdef SCALEF
  return SCALEF(p, shifted - 0x1.8p23f);
#else
  U n = AS_U(shifted) - 0x4b3fff00u, low = n >> 1; /* n is 256 too large, so never negative */
  return p * AS_F((low - 1u) << 23) * AS_F((n - low - 1u) << 23);
#endif
}

/* `size` with the sign of x. */
INLINE F NAMED(like)(F size, F x) { return AS_F(AS_U(size) | (AS_U(x) & 0x80000000u)); }

/* Near zero a polynomial, else 1 - 2 / (exp(2x) + 1). */
INLINE F NAMED(tanh)(F x) {
  F a = AS_F(AS_U(x) & 0x7fffffffu), s = a * a;
  F p = FMA(s, K(0x1.eb0cf6p-10f), K(-0x1.01556cp-7f));
  p = FMA(p, s, K(0x1.612d16p-6f));
  p = FMA(p, s, K(-0x1.b9b17cp-5f));
  p = FMA(p, s, K(0x1.110f10p-3f));
  p = FMA(p, s, K(-0x1.55554ep-2f));
  F near = FMA(p * s, a, a);
  F far = 1.0f - 2.0f / (NAMED(normal_exp)(LEAST(K(40.0f), a + a)) + 1.0f);
  return NAMED(like)(SELECT_F(LT(K(0.6875f), a), far, near), x);
}

/* Two polynomials of N. Juffa's (stackoverflow.com/questions/35148198), the second in an exp. */
INLINE F NAMED(erf)(F x) {
  F a = AS_F(AS_U(x) & 0x7fffffffu), t = LEAST(K(4.0f), a), s = t * t;
  F r = FMA(t, K(-1.72853470e-5f), K(3.83197126e-4f));
  F u = FMA(t, K(-3.88396438e-3f), K(2.42546219e-2f));
  r = FMA(r, s, u);
  r = FMA(r, t, K(-1.06777877e-1f));
  r = FMA(r, t, K(-6.34846687e-1f));
  r = FMA(r, t, K(-1.28717512e-1f));
  r = FMA(r, t, -t);
  F far = 1.0f - NAMED(normal_exp)(r);
  F p = FMA(s, K(-5.96761703e-4f), K(4.99119423e-3f));
  p = FMA(p, s, K(-2.67681349e-2f));
  p = FMA(p, s, K(1.12819925e-1f));
  p = FMA(p, s, K(-3.76125336e-1f));
  p = FMA(p, s, K(1.28379166e-1f));
  F near = FMA(p, t, t);
  return NAMED(like)(SELECT_F(LT(K(0.927734375f), t), far, near), x);
}
