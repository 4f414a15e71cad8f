/* Types of sixteen lanes: loads, stores, selection, conversions. Plain C with the vector
   extensions of gcc and clang; includes nothing, because headers cost more than small kernels. */

#define INLINE static inline __attribute__((always_inline, unused))
#define OUTLINE static __attribute__((noinline, unused))
#define LANES 16
#define EACH(i) for (int i = 0; i < LANES; ++i)

/* The start of pool.c's: kernels ask for their items by it. */
struct turn { int (*next)(struct turn *); };

INLINE int min(int a, int b) { return a < b ? a : b; }

/* gcc fills vectors that are wider than the processor's one lane at a time, unless it is shown how
   to do it in parts. */
#if defined(__clang__) || defined(__AVX512F__)
#define FILL(v, type, bytes) \
  INLINE v splat_##v(type x) { return (v){x, x, x, x, x, x, x, x, x, x, x, x, x, x, x, x}; }
#else
#ifdef __AVX__
#define NATIVE 32
#else
#define NATIVE 16
#endif
#define FILL(v, type, bytes) \
  typedef type v##_part __attribute__((vector_size(bytes < NATIVE ? bytes : NATIVE))); \
  INLINE v splat_##v(type x) { \
    union { v whole; v##_part parts[bytes / sizeof(v##_part)]; } t; \
    v##_part part = x - (v##_part){0}; \
    for (unsigned i = 0; i < bytes / sizeof part; ++i) t.parts[i] = part; \
    return t.whole; \
  }
#endif

#define TYPE(v, type, bytes) \
  typedef type v __attribute__((vector_size(bytes))); \
  typedef type v##_stored __attribute__((vector_size(bytes), aligned(sizeof(type)), may_alias));

/* How a variable that changes holds a value. */
#define VECTOR(v, type, bytes) \
  TYPE(v, type, bytes) \
  typedef v held_##v; \
  INLINE v hold_##v(v x) { return x; } \
  INLINE v of_##v(v x) { return x; } \
  FILL(v, type, bytes) \
  INLINE v load_##v(const type *p) { return *(const v##_stored *)p; } \
  INLINE void store_##v(type *p, v x) { *(v##_stored *)p = x; }

VECTOR(vi8, signed char, 16)
VECTOR(vu8, unsigned char, 16)
VECTOR(vi16, short, 32)
VECTOR(vu16, unsigned short, 32)
VECTOR(vi32, int, 64)
VECTOR(vu32, unsigned, 64)
VECTOR(vi64, long long, 128)
VECTOR(vu64, unsigned long long, 128)

/* gcc leaves a variable that is wider than the processor's vectors in memory where it changes: every
   addition of a loop would load a sum and store it. As two halves floats stay in registers. (Whole
   numbers do not: gcc 12 joins their halves one lane at a time.) */
#if defined(__FMA__) && !defined(__AVX512F__) && !defined(__clang__) && \
  __has_builtin(__builtin_shufflevector)
#define LOW(x) __builtin_shufflevector(x, x, 0, 1, 2, 3, 4, 5, 6, 7)
#define HIGH(x) __builtin_shufflevector(x, x, 8, 9, 10, 11, 12, 13, 14, 15)
#define JOIN(a, b) \
  __builtin_shufflevector(a, b, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15)
TYPE(vf32, float, 64)
typedef float half_vf32 __attribute__((vector_size(32)));
typedef float half_vf32_stored __attribute__((vector_size(32), aligned(4), may_alias));
typedef struct { half_vf32 low, high; } held_vf32;
INLINE held_vf32 hold_vf32(vf32 x) { return (held_vf32){LOW(x), HIGH(x)}; }
/* A new value each time: gcc would keep one that several places read, in memory again. */
INLINE vf32 of_vf32(held_vf32 x) {
  __asm__("" : "+x"(x.low), "+x"(x.high));
  return JOIN(x.low, x.high);
}
INLINE vf32 splat_vf32(float x) {
  half_vf32 half = x - (half_vf32){0};
  return JOIN(half, half);
}
/* By name: what it sees through is loaded lane by lane. */
INLINE vf32 load_vf32(const float *p) {
  return JOIN(__builtin_ia32_loadups256(p), __builtin_ia32_loadups256(p + 8));
}
INLINE void store_vf32(float *p, vf32 x) {
  *(half_vf32_stored *)p = LOW(x);
  *(half_vf32_stored *)(p + 8) = HIGH(x);
}
#else
VECTOR(vf32, float, 64)
#endif
VECTOR(vf64, double, 128)

/* One scalar per lane. gcc would go through memory with vectors that are wider than the processor's,
   and wait for what it just wrote. */
#define LIST(type) type a, type b, type c, type d, type e, type f, type g, type h
#define LIST2(type) type i, type j, type k, type l, type m, type n, type o, type p
#if defined(__clang__) || defined(__AVX512F__) || !defined(__AVX__)
#define GATHERED(v, type) \
  INLINE v gathered_##v(LIST(type), LIST2(type)) { \
    return (v){a, b, c, d, e, f, g, h, i, j, k, l, m, n, o, p}; \
  }
#else
#define GATHERED(v, type) \
  typedef type v##_half __attribute__((vector_size(8 * sizeof(type)))); \
  INLINE v gathered_##v(LIST(type), LIST2(type)) { \
    union { v whole; v##_half halves[2]; } t; \
    t.halves[0] = (v##_half){a, b, c, d, e, f, g, h}; \
    t.halves[1] = (v##_half){i, j, k, l, m, n, o, p}; \
    return t.whole; \
  }
#endif

GATHERED(vi32, int)
GATHERED(vu32, unsigned)
GATHERED(vf32, float)

/* Masks are 32 bits wide, all ones or zero, whatever is selected. */
#define SELECT(v, mask) \
  INLINE v select_##v(vi32 m, v a, v b) { \
    mask k = __builtin_convertvector(m, mask); \
    return (v)((k & (mask)a) | (~k & (mask)b)); \
  }

SELECT(vi8, vi8)
SELECT(vu8, vi8)
SELECT(vi16, vi16)
SELECT(vu16, vi16)
SELECT(vi32, vi32)
SELECT(vu32, vi32)
SELECT(vi64, vi64)
SELECT(vu64, vi64)
SELECT(vf32, vi32)
SELECT(vf64, vi64)

/* The greater and the smaller: a where it is, else b. */
#define EXTREME(v, mask, name, sign) \
  INLINE v name##_##v(v a, v b) { mask k = a sign b; return (v)((k & (mask)a) | (~k & (mask)b)); }
#define EXTREMES(v, mask) EXTREME(v, mask, max, >) EXTREME(v, mask, min, <)

EXTREMES(vi8, vi8)
EXTREMES(vu8, vi8)
EXTREMES(vi16, vi16)
EXTREMES(vu16, vi16)
EXTREMES(vi64, vi64)
EXTREMES(vu64, vi64)
#if defined(__AVX512F__) && !defined(__clang__) /* gcc 12 finds no single instruction */
#define ONE_EXTREME(v, mask, name, f, ...) \
  INLINE v name##_##v(v a, v b) { return (v)f((mask)a, (mask)b, (mask)a, -1 __VA_ARGS__); }
ONE_EXTREME(vi32, vi32, max, __builtin_ia32_pmaxsd512_mask)
ONE_EXTREME(vi32, vi32, min, __builtin_ia32_pminsd512_mask)
ONE_EXTREME(vu32, vi32, max, __builtin_ia32_pmaxud512_mask)
ONE_EXTREME(vu32, vi32, min, __builtin_ia32_pminud512_mask)
ONE_EXTREME(vf32, vf32, max, __builtin_ia32_maxps512_mask, , 4)
ONE_EXTREME(vf32, vf32, min, __builtin_ia32_minps512_mask, , 4)
#else
EXTREMES(vi32, vi32)
EXTREMES(vu32, vi32)
EXTREMES(vf32, vi32)
#endif

INLINE float select_f32(int m, float a, float b) { return m ? a : b; }
INLINE unsigned select_u32(int m, unsigned a, unsigned b) { return m ? a : b; }

INLINE unsigned bits_f32(float x) { unsigned u; __builtin_memcpy(&u, &x, 4); return u; }
INLINE float float_u32(unsigned u) { float x; __builtin_memcpy(&x, &u, 4); return x; }
INLINE unsigned long long bits_f64(double x) {
  unsigned long long u;
  __builtin_memcpy(&u, &x, 8);
  return u;
}
INLINE double float_u64(unsigned long long u) { double x; __builtin_memcpy(&x, &u, 8); return x; }

/* Floats to integers: truncated, held within the range; what NaN gives is decided outside.
 * Of a scalar that becomes a float again gcc makes one truncation, under -fno-trapping-math, and
 * so -0 of what lies above -1: an integer has no such zero. It must not know where one came from. */
#define SATURATE(f, from, mask, t, to, low, high, least, most) \
  INLINE to saturated_##f##_##t(from x) { \
    to y = x >= (high) ? (to)(most) : x >= (low) ? (to)x : (to)(least); \
    __asm__("" : "+r"(y)); \
    return y; \
  } \
  INLINE v##t saturated_v##f##_##t(v##f x) { \
    mask above = x >= (high), below = ~(x >= (low)); \
    v##t y = __builtin_convertvector((v##f)((mask)x & ~above & ~below), v##t); \
    y = select_v##t(__builtin_convertvector(below, vi32), splat_v##t((to)(least)), y); \
    return select_v##t(__builtin_convertvector(above, vi32), splat_v##t((to)(most)), y); \
  }
#define SATURATES(t, to, low, high, least, most) \
  SATURATE(f32, float, vi32, t, to, low##f, high##f, least, most) \
  SATURATE(f64, double, vi64, t, to, low, high, least, most)

SATURATES(i8, signed char, -0x1p7, 0x1p7, -128, 127)
SATURATES(i16, short, -0x1p15, 0x1p15, -32768, 32767)
SATURATES(i32, int, -0x1p31, 0x1p31, -2147483647 - 1, 2147483647)
SATURATES(i64, long long, -0x1p63, 0x1p63, -9223372036854775807ll - 1, 9223372036854775807ll)
SATURATES(u8, unsigned char, 0x0p0, 0x1p8, 0, 255)
SATURATES(u16, unsigned short, 0x0p0, 0x1p16, 0, 65535)
SATURATES(u32, unsigned, 0x0p0, 0x1p32, 0, 4294967295u)
SATURATES(u64, unsigned long long, 0x0p0, 0x1p64, 0, 18446744073709551615ull)

/* One rounding: what only contractions ask for. */
INLINE float fma_f32(float a, float b, float c) { return __builtin_fmaf(a, b, c); }
INLINE double fma_f64(double a, double b, double c) { return __builtin_fma(a, b, c); }

#if __has_builtin(__builtin_elementwise_fma)
INLINE vf32 fma_vf32(vf32 a, vf32 b, vf32 c) { return __builtin_elementwise_fma(a, b, c); }
INLINE vf64 fma_vf64(vf64 a, vf64 b, vf64 c) { return __builtin_elementwise_fma(a, b, c); }
#else
#if defined(__AVX512F__)
#define PART_BYTES 64
#define FMA_F32(a, b, c) __builtin_ia32_vfmaddps512_mask(a, b, c, -1, 4)
#define FMA_F64(a, b, c) __builtin_ia32_vfmaddpd512_mask(a, b, c, -1, 4)
#elif defined(__FMA__)
#define PART_BYTES 32
#define FMA_F32(a, b, c) __builtin_ia32_vfmaddps256(a, b, c)
#define FMA_F64(a, b, c) __builtin_ia32_vfmaddpd256(a, b, c)
#elif defined(__aarch64__)
#define PART_BYTES 16
#define FMA_F32(a, b, c) __builtin_aarch64_fmav4sf(a, b, c)
#define FMA_F64(a, b, c) __builtin_aarch64_fmav2df(a, b, c)
#endif
#ifdef PART_BYTES
typedef float f32_part __attribute__((vector_size(PART_BYTES)));
typedef double f64_part __attribute__((vector_size(PART_BYTES)));
#define PARTS(type) (LANES * sizeof(type) / PART_BYTES)
#define BY_PARTS(v, type, part, f) \
  INLINE v fma_##v(v a, v b, v c) { \
    union { v whole; part parts[PARTS(type)]; } x = {a}, y = {b}, z = {c}; \
    for (unsigned i = 0; i < PARTS(type); ++i) \
      z.parts[i] = f(x.parts[i], y.parts[i], z.parts[i]); \
    return z.whole; \
  }
BY_PARTS(vf64, double, f64_part, FMA_F64)
#ifdef JOIN
INLINE vf32 fma_vf32(vf32 a, vf32 b, vf32 c) {
  return JOIN(FMA_F32(LOW(a), LOW(b), LOW(c)), FMA_F32(HIGH(a), HIGH(b), HIGH(c)));
}
#elif PART_BYTES == 64
INLINE vf32 fma_vf32(vf32 a, vf32 b, vf32 c) { return FMA_F32(a, b, c); }
#else
BY_PARTS(vf32, float, f32_part, FMA_F32)
#endif
#else
INLINE vf32 fma_vf32(vf32 a, vf32 b, vf32 c) { EACH(i) c[i] = fma_f32(a[i], b[i], c[i]); return c; }
INLINE vf64 fma_vf64(vf64 a, vf64 b, vf64 c) { EACH(i) c[i] = fma_f64(a[i], b[i], c[i]); return c; }
#endif
#endif
