/* Functions of f32 that are computed in f64, written once and read twice: with one lane and with
   SOME. D, DI, DU: the 64-bit types; W: f32 of as many lanes; NAMED(f): f_d1, f_vd. */

/* 2 to the power of n, for normal results. */
INLINE D NAMED(power_of_two)(DI n) { return AS_D((DU)(n + 1023) << 52); }

/* x = n log(2) + r, |r| < 0.35; the returned value is exp(r) - 1, to about 2e-13. */
INLINE D NAMED(reduced_expm1)(D x, DI *n) {
  D magic = x * 0x1.71547652b82fep0 + 0x1.8p52, k = magic - 0x1.8p52;
  *n = (DI)(AS_DU(magic) - 0x4338000000000000ull);
  D r = (x - k * 0x1.62e42feep-1) - k * 0x1.a39ef35793c76p-33;
  D p = r * (1.0 / 3628800) + 1.0 / 362880;
  p = p * r + 1.0 / 40320;
  p = p * r + 1.0 / 5040;
  p = p * r + 1.0 / 720;
  p = p * r + 1.0 / 120;
  p = p * r + 1.0 / 24;
  p = p * r + 1.0 / 6;
  p = p * r + 0.5;
  return p * r * r + r;
}

/* FreeBSD's e_log.c, for normal positive numbers. */
INLINE D NAMED(log)(D x) {
  DU u = AS_DU(x) - 0x3fe6a09e667f3bcdull;
  DI n = (DI)u >> 52;
  D f = AS_D((u & 0xfffffffffffffull) + 0x3fe6a09e667f3bcdull) - 1.0;
  D s = f / (f + 2.0), z = s * s, w = z * z;
  D r = w * (w * (w * 1.531383769920937332e-01 + 2.222219843214978396e-01)
             + 3.999999999940941908e-01);
  r += z * (w * (w * (w * 1.479819860511658591e-01 + 1.818357216161805012e-01)
                 + 2.857142874366239149e-01) + 6.666666666666735130e-01);
  D square = f * f * 0.5, k = TO_D(n);
  return k * 6.93147180369123816490e-01
         - ((square - (s * (square + r) + k * 1.90821492927058770002e-10)) - f);
}

INLINE W NAMED(expm1)(W given) {
  D x = WIDE(given);
  D t = SELECT_D(BELOW(x, -50.0), K(-50.0), x);
  t = SELECT_D(ABOVE(t, 100.0), K(100.0), t);
  DI n;
  D p = NAMED(reduced_expm1)(t, &n), power = NAMED(power_of_two)(n);
  return NARROW(SELECT_D(EQUAL(x, 0.0), x, power * p + (power - 1.0)));
}

INLINE W NAMED(log1p)(W given) {
  D x = WIDE(given), one = x + 1.0;
  D found = NAMED(log)(SELECT_D(ABOVE(one, 0.0), one, K(1.0))) + (x - (one - 1.0)) / one;
  found = SELECT_D(EQUAL(x, 0.0), x, found);
  found = SELECT_D(EQUAL(x, -1.0), K(-__builtin_inf()), found);
  found = SELECT_D(BELOW(x, -1.0), K(__builtin_nan("")), found);
  return NARROW(SELECT_D(ABOVE(x, 0x1p200), x, found));
}

/* For positive finite x and finite y. */
INLINE W NAMED(pow)(W base, W exponent) {
  D found = NAMED(log)(WIDE(base)) * WIDE(exponent);
  found = SELECT_D(BELOW(found, -150.0), K(-150.0), found);
  found = SELECT_D(ABOVE(found, 150.0), K(150.0), found);
  DI n;
  D p = NAMED(reduced_expm1)(found, &n);
  return NARROW(NAMED(power_of_two)(n) * (p + 1.0));
}

/* musl's sinf and cosf, for numbers up to 2^20: the quarter turn and what is left of it. */
INLINE W NAMED(turned)(W given, int quarters) {
  D x = WIDE(given);
  D magic = x * 0x1.45f306dc9c883p-1 + 0x1.8p52, k = magic - 0x1.8p52;
  DI quarter = (DI)AS_DU(magic) + quarters;
  D r = (x - k * 0x1.921fb544p0) - k * 0x1.0b4611a626331p-34;
  D z = r * r, w = z * z, s = z * r;
  D sine = (r + s * (z * 0x111110896efbb2p-59 - 0x15555554cbac77p-55))
           + s * w * (z * 0x16cd878c3b46a7p-71 - 0x1a00f9e2cae774p-65);
  D cosine = ((1.0 - z * 0x1ffffffd0c5e81p-54) + w * 0x155553e1053a42p-57)
             + w * z * (z * 0x199342e0ee5069p-68 - 0x16c087e80f1e27p-62);
  D found = SELECT_D(-(quarter & 1), cosine, SELECT_D(EQUAL(x, 0.0), x, sine));
  return NARROW(AS_D(AS_DU(found) ^ ((DU)(quarter & 2) << 62)));
}
