/* Functions of floats: CUDA's own, which are within one or two units in the last place, but for
   exp, tanh and erf of f32, whose text is the kernel generator's. */

#define FUNCTION(name, single, twice) \
  INLINE f32 name##_of(f32 x) { return single(x); } \
  INLINE f64 name##_of(f64 x) { return twice(x); } \
  LANE_BY_LANE_1(name##_of)
#define FUNCTION2(name, single, twice) \
  INLINE f32 name##_of(f32 x, f32 y) { return single(x, y); } \
  INLINE f64 name##_of(f64 x, f64 y) { return twice(x, y); } \
  LANE_BY_LANE_2(name##_of)

FUNCTION(exp, exp_f32, exp)
FUNCTION(tanh, tanh_f32, tanh)
FUNCTION(erf, erf_f32, erf)
FUNCTION(expm1, expm1f, expm1)
FUNCTION(log, logf, log)
FUNCTION(log1p, log1pf, log1p)
FUNCTION(sqrt, sqrtf, sqrt)
FUNCTION(sin, sinf, sin)
FUNCTION(cos, cosf, cos)
FUNCTION(abs, fabsf, fabs)
FUNCTION(floor, floorf, floor)
FUNCTION(ceil, ceilf, ceil)
FUNCTION(round, rintf, rint)
FUNCTION2(pow, powf, pow)
FUNCTION2(rem, fmodf, fmod)

INLINE f32 fma_of(f32 a, f32 b, f32 c) { return fmaf(a, b, c); }
INLINE f64 fma_of(f64 a, f64 b, f64 c) { return fma(a, b, c); }
LANE_BY_LANE_3(fma_of)

/* Pairs of bf16 in words: spelled out, where tensor cores do not take them. */
template <int N> INLINE vec<f32, N> dot_bf16(vec<f32, N> a, vec<u32, N> w, u32 x) {
  EACH(i) {
    a[i] = fmaf(bf16_value((u16)w[i]), bf16_value((u16)x), a[i]);
    a[i] = fmaf(bf16_value((u16)(w[i] >> 16)), bf16_value((u16)(x >> 16)), a[i]);
  }
  return a;
}
