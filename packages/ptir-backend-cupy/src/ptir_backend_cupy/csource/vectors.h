/* Types, vectors of lanes, conversions: what every generated CUDA kernel stands on. Nothing is
   included: NVRTC has no headers of its own, and its built-in functions need none. */

typedef signed char i8;
typedef short i16;
typedef int i32;
typedef long long i64;
typedef unsigned char u8;
typedef unsigned short u16;
typedef unsigned u32;
typedef unsigned long long u64;
typedef float f32;
typedef double f64;

#define INLINE static __device__ __forceinline__
#define EACH(i) _Pragma("unroll") for (int i = 0; i < N; ++i)

/* Every loop over lanes is unrolled, so that lanes are registers. */
template <class T, int N> struct vec {
  T lanes[N];
  __device__ __forceinline__ T &operator[](int i) { return lanes[i]; }
  __device__ __forceinline__ const T &operator[](int i) const { return lanes[i]; }
};

template <class T, int N> INLINE vec<T, N> splat(T x) {
  vec<T, N> v;
  EACH(i) v[i] = x;
  return v;
}
template <class T, class... A> INLINE vec<T, sizeof...(A)> gathered(A... x) { return {{(T)x...}}; }
template <int N, class T> INLINE vec<T, N> load(const T *p) {
  vec<T, N> v;
  EACH(i) v[i] = p[i];
  return v;
}
template <class T, int N> INLINE void store(T *p, vec<T, N> v) { EACH(i) p[i] = v[i]; }

/* The same bits. */
template <class To, class From> INLINE To as(From x) {
  static_assert(sizeof(To) == sizeof(From), "bits that do not fit");
  union { From from; To to; } u;
  u.from = x;
  return u.to;
}
template <class To, class From, int N> INLINE vec<To, N> as(vec<From, N> x) {
  vec<To, N> v;
  EACH(i) v[i] = as<To>(x[i]);
  return v;
}

/* --- arithmetic --- */

/* Integers wrap: they are computed without signs, narrow ones as 32 bits. */
#define WRAPPING(T, U) \
  INLINE T wrapping_add(T a, T b) { return (T)((U)a + (U)b); } \
  INLINE T wrapping_sub(T a, T b) { return (T)((U)a - (U)b); } \
  INLINE T wrapping_mul(T a, T b) { return (T)((U)a * (U)b); } \
  INLINE T wrapping_shift_left(T a, T b) { return (T)((U)a << (U)b); } \
  INLINE T wrapping_neg(T a) { return (T)((U)0 - (U)a); }
WRAPPING(i8, u32)
WRAPPING(i16, u32)
WRAPPING(i32, u32)
WRAPPING(i64, u64)
WRAPPING(u8, u32)
WRAPPING(u16, u32)
WRAPPING(u32, u32)
WRAPPING(u64, u64)

#define LANE_BY_LANE_1(name) \
  template <class T, int N> INLINE vec<T, N> name(vec<T, N> a) { \
    EACH(i) a[i] = name(a[i]); \
    return a; \
  }
#define LANE_BY_LANE_2(name) \
  template <class T, int N> INLINE vec<T, N> name(vec<T, N> a, vec<T, N> b) { \
    EACH(i) a[i] = name(a[i], b[i]); \
    return a; \
  }
#define LANE_BY_LANE_3(name) \
  template <class T, int N> INLINE vec<T, N> name(vec<T, N> a, vec<T, N> b, vec<T, N> c) { \
    EACH(i) a[i] = name(a[i], b[i], c[i]); \
    return a; \
  }
LANE_BY_LANE_2(wrapping_add)
LANE_BY_LANE_2(wrapping_sub)
LANE_BY_LANE_2(wrapping_mul)
LANE_BY_LANE_2(wrapping_shift_left)
LANE_BY_LANE_1(wrapping_neg)

#define OPERATOR(sign) \
  template <class T, int N> INLINE vec<T, N> operator sign(vec<T, N> a, vec<T, N> b) { \
    EACH(i) a[i] = (T)(a[i] sign b[i]); \
    return a; \
  }
OPERATOR(+)
OPERATOR(-)
OPERATOR(*)
OPERATOR(/)
OPERATOR(%)
OPERATOR(&)
OPERATOR(|)
OPERATOR(^)
OPERATOR(>>)
template <class T, int N> INLINE vec<T, N> operator-(vec<T, N> a) {
  EACH(i) a[i] = (T)-a[i];
  return a;
}
template <class T, int N> INLINE vec<T, N> operator~(vec<T, N> a) {
  EACH(i) a[i] = (T)~a[i];
  return a;
}

/* Masks are 32 bits wide, all ones or zero, whatever was compared. */
#define RELATION(sign) \
  template <class T, int N> INLINE vec<i32, N> operator sign(vec<T, N> a, vec<T, N> b) { \
    vec<i32, N> m; \
    EACH(i) m[i] = -(a[i] sign b[i]); \
    return m; \
  }
RELATION(==)
RELATION(!=)
RELATION(<)
RELATION(<=)
RELATION(>)
RELATION(>=)
template <class T, int N> INLINE vec<T, N> chosen(vec<i32, N> m, vec<T, N> a, vec<T, N> b) {
  EACH(i) a[i] = m[i] ? a[i] : b[i];
  return a;
}
template <class T> INLINE T greater(T a, T b) { return a > b ? a : b; }
template <class T> INLINE T smaller(T a, T b) { return a < b ? a : b; }
LANE_BY_LANE_2(greater)
LANE_BY_LANE_2(smaller)

/* --- conversions --- */

template <class T> struct of_type { static const bool floats = false; };
template <> struct of_type<f32> { static const bool floats = true; };
template <> struct of_type<f64> { static const bool floats = true; };

/* C++'s, but floats are held within the range of integers; what NaN gives is decided outside. */
template <class To, class From> INLINE To convert(From x) {
  if constexpr (of_type<From>::floats && !of_type<To>::floats) {
    const bool has_sign = (To)-1 < (To)0;
    const u64 top = 1ull << (8 * sizeof(To) - 1);
    const To most = (To)(has_sign ? top - 1 : top | (top - 1));
    const From above = has_sign ? (From)top : (From)top * 2;
    const From low = has_sign ? -(From)top : (From)0;
    return x >= above ? most : x >= low ? (To)x : (To)~most;
  } else {
    return (To)x;
  }
}
template <class To, class From, int N> INLINE vec<To, N> convert(vec<From, N> x) {
  vec<To, N> v;
  EACH(i) v[i] = convert<To>(x[i]);
  return v;
}

/* 16-bit formats are rounded half to even; denormals stay. */
INLINE u16 bf16_bits(f32 x) {
  const u32 u = as<u32>(x);
  return (u16)((x == x ? u + 0x7fffu + (u >> 16 & 1u) : u | 0x400000u) >> 16);
}
INLINE f32 bf16_value(u16 h) { return as<f32>((u32)h << 16); }

/* The device knows one NaN only: sign and first bits of others are taken from what is converted. */
INLINE f32 f16_value(u16 h) {
  f32 x;
  asm("cvt.f32.f16 %0, %1;" : "=f"(x) : "h"(h));
  const u32 nan = (u32)(h & 0x8000u) << 16 | 0x7f800000u | (u32)(h & 0x3ffu) << 13;
  return x == x ? x : as<f32>(nan);
}
INLINE u16 f16_bits(f32 x) {
  u16 h;
  asm("cvt.rn.f16.f32 %0, %1;" : "=h"(h) : "f"(x));
  const u32 u = as<u32>(x), nan = (u >> 16 & 0x8000u) | 0x7e00u | (u >> 13 & 0x3ffu);
  return x == x ? h : (u16)nan;
}
#define FORMAT(f) \
  template <int N> INLINE vec<u16, N> f##_bits(vec<f32, N> x) { \
    vec<u16, N> v; \
    EACH(i) v[i] = f##_bits(x[i]); \
    return v; \
  } \
  template <int N> INLINE vec<f32, N> f##_value(vec<u16, N> h) { \
    vec<f32, N> v; \
    EACH(i) v[i] = f##_value(h[i]); \
    return v; \
  } \
  INLINE f32 f##_rounded(f32 x) { return f##_value(f##_bits(x)); } \
  LANE_BY_LANE_1(f##_rounded)
FORMAT(f16)
FORMAT(bf16)
