/* What functions.h and doubles.h leave: wide values in parts, and functions one lane at a time. */

#define BY_PARTS_OF(name, call) \
  OUTLINE vf32 name##_vf32(vf32 x) { \
    union { vf32 whole; vdf part[LANES / SOME]; } t = {x}; \
    for (int i = 0; i < LANES / SOME; ++i) t.part[i] = call; \
    return t.whole; \
  }

BY_PARTS_OF(expm1, expm1_vd(t.part[i]))
BY_PARTS_OF(log1p, log1p_vd(t.part[i]))
BY_PARTS_OF(near_sin, turned_vd(t.part[i], 0))
BY_PARTS_OF(near_cos, turned_vd(t.part[i], 1))
INLINE float expm1_f32(float x) { return expm1_d1(x); }
INLINE float log1p_f32(float x) { return log1p_d1(x); }
INLINE float near_sin_f32(float x) { return turned_d1(x, 0); }
INLINE float near_cos_f32(float x) { return turned_d1(x, 1); }

/* Huge angles go to the C library. */
#define ANGLE(name) \
  INLINE int name##_is_near(float x) { return __builtin_fabsf(x) <= 0x1p20f; } \
  INLINE float name##_f32(float x) { \
    return name##_is_near(x) ? near_##name##_f32(x) : __builtin_##name##f(x); \
  } \
  OUTLINE vf32 name##_vf32(vf32 x) { \
    vf32 found = near_##name##_vf32(x); \
    EACH(i) if (!name##_is_near(x[i])) found[i] = __builtin_##name##f(x[i]); \
    return found; \
  }

ANGLE(sin)
ANGLE(cos)

/* Powers of what is not positive and finite go to the C library. */
INLINE int is_power(float x, float y) {
  return x > 0 && x < __builtin_inff() && __builtin_fabsf(y) < __builtin_inff();
}
INLINE float pow_f32(float x, float y) { return is_power(x, y) ? pow_d1(x, y) : __builtin_powf(x, y); }
OUTLINE vf32 pow_vf32(vf32 x, vf32 y) {
  union { vf32 whole; vdf part[LANES / SOME]; } a = {x}, b = {y};
  for (int i = 0; i < LANES / SOME; ++i) a.part[i] = pow_vd(a.part[i], b.part[i]);
  EACH(i) if (!is_power(x[i], y[i])) a.whole[i] = __builtin_powf(x[i], y[i]);
  return a.whole;
}

INLINE float sqrt_f32(float x) { return __builtin_sqrtf(x); }
#if __has_builtin(__builtin_elementwise_sqrt)
INLINE vf32 sqrt_vf32(vf32 x) { return __builtin_elementwise_sqrt(x); }
#elif defined(__AVX512F__) && !defined(__clang__)
INLINE vf32 sqrt_vf32(vf32 x) { return __builtin_ia32_sqrtps512_mask(x, x, -1, 4); }
#else
INLINE vf32 sqrt_vf32(vf32 x) { EACH(i) x[i] = __builtin_sqrtf(x[i]); return x; }
#endif

INLINE float rem_f32(float x, float y) { return __builtin_fmodf(x, y); }
OUTLINE vf32 rem_vf32(vf32 x, vf32 y) { EACH(i) x[i] = __builtin_fmodf(x[i], y[i]); return x; }

/* f64: the C library's functions. */
#define LIBRARY(name, f) \
  INLINE double name##_f64(double x) { return f(x); } \
  OUTLINE void name##_lanes(double *x) { EACH(i) x[i] = f(x[i]); } \
  INLINE vf64 name##_vf64(vf64 x) { name##_lanes((double *)&x); return x; }
#define LIBRARY2(name, f) \
  INLINE double name##_f64(double x, double y) { return f(x, y); } \
  OUTLINE void name##_lanes(double *x, const double *y) { EACH(i) x[i] = f(x[i], y[i]); } \
  INLINE vf64 name##_vf64(vf64 x, vf64 y) { \
    name##_lanes((double *)&x, (const double *)&y); \
    return x; \
  }

LIBRARY(exp, __builtin_exp)
LIBRARY(expm1, __builtin_expm1)
LIBRARY(log, __builtin_log)
LIBRARY(log1p, __builtin_log1p)
LIBRARY(sqrt, __builtin_sqrt)
LIBRARY(sin, __builtin_sin)
LIBRARY(cos, __builtin_cos)
LIBRARY(tanh, __builtin_tanh)
LIBRARY(erf, __builtin_erf)
LIBRARY(floor, __builtin_floor)
LIBRARY(ceil, __builtin_ceil)
LIBRARY(round, __builtin_rint)
LIBRARY(abs, __builtin_fabs)
LIBRARY2(pow, __builtin_pow)
LIBRARY2(rem, __builtin_fmod)
