/* All lanes combined: halves with halves, which is the order that the generator writes out for
   languages without this. Shuffles cost a fraction of taking sixteen lanes apart. */

#if __has_builtin(__builtin_shufflevector)
#define HALVES(name, type) \
  typedef type name##_8 __attribute__((vector_size(8 * sizeof(type)))); \
  typedef type name##_4 __attribute__((vector_size(4 * sizeof(type))));
#define FOLD(op, v, type) \
  INLINE type fold_##op##_##v(v x) { \
    v##_8 a = __builtin_shufflevector(x, x, 0, 1, 2, 3, 4, 5, 6, 7); \
    v##_8 b = __builtin_shufflevector(x, x, 8, 9, 10, 11, 12, 13, 14, 15); \
    a = op##_of(a, b); \
    v##_4 c = __builtin_shufflevector(a, a, 0, 1, 2, 3); \
    v##_4 d = __builtin_shufflevector(a, a, 4, 5, 6, 7); \
    c = op##_of(c, d); \
    d = __builtin_shufflevector(c, c, 2, 3, 2, 3); \
    c = op##_of(c, d); \
    d = __builtin_shufflevector(c, c, 1, 1, 1, 1); \
    return op##_of(c, d)[0]; \
  }
#else
#define HALVES(name, type)
#define FOLD(op, v, type) \
  INLINE type fold_##op##_##v(v x) { \
    for (int half = LANES / 2; half; half /= 2) \
      for (int i = 0; i < half; ++i) x[i] = op##_one(x[i], x[i + half]); \
    return x[0]; \
  }
#endif

#define add_of(a, b) ((a) + (b))
#define add_one(a, b) ((a) + (b))
#define max_of(a, b) ((b) ^ (((a) ^ (b)) & ((a) > (b))))
#define max_one(a, b) ((a) >= (b) ? (a) : (b))

HALVES(vf32, float)
HALVES(vu32, unsigned)
HALVES(vi32, int)
FOLD(add, vf32, float)
FOLD(add, vu32, unsigned)
FOLD(max, vi32, int)
INLINE int fold_add_vi32(vi32 x) { return (int)fold_add_vu32((vu32)x); }
