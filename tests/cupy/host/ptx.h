// What PTX instructions do, written from the PTX ISA. Included by cuda_host.h, within its namespace.
//
// Sums of mma are those of an A100, the coarsest of the GPUs that are asked for (M. Fasi et al.,
// Numerical behavior of NVIDIA tensor cores, 2021; P. Xie et al., MMA-Sim, 2025): eight products
// and the sum so far are cut to 24 bits behind the point of the greatest, added, and cut to f32.

namespace ptx {

// Shared memory begins at 0, as its addresses do on a GPU.
static char *shared(uint32_t address) { return __start_block_memory + address; }

// --- 9.7.14.5.8: mma.m16n8k16 with floating point types ---

static int row_of_a(int lane, int i) { return lane / 4 + ((i & 2) ? 8 : 0); }
static int column_of_a(int lane, int i) { return lane % 4 * 2 + (i & 1) + (i >= 4 ? 8 : 0); }
static int row_of_b(int lane, int i) { return lane % 4 * 2 + (i & 1) + (i >= 2 ? 8 : 0); }
static int column_of_b(int lane) { return lane / 4; }
static int row_of_c(int lane, int i) { return lane / 4 + (i >= 2 ? 8 : 0); }
static int column_of_c(int lane, int i) { return lane % 4 * 2 + (i & 1); }

struct Bf16 {
  static const int LEAST = -126;  // the exponent of subnormal numbers
  static double value(unsigned bits) {
    const uint32_t word = bits << 16;
    float x;
    memcpy(&x, &word, 4);
    return x;
  }
};
struct F16 {
  static const int LEAST = -14;
  static double value(unsigned bits) {
    const int exponent = bits >> 10 & 31, fraction = bits & 1023;
    const double size = exponent == 31 ? (fraction ? NAN : INFINITY)
                        : exponent     ? ldexp(1024 + fraction, exponent - 25)
                                       : ldexp(fraction, -24);
    return bits & 0x8000 ? -size : size;
  }
};

static int exponent_of(double x, int least) {
  int e;
  frexp(x, &e);
  return e - 1 < least ? least : e - 1;
}

// --- 9.7.9.21: cvt; every NaN becomes the one that there is ---

static void cvt_f32_f16(float &x, uint16_t h) {
  const uint32_t nan = 0x7fffffffu;
  x = (float)F16::value(h);
  if (isnan(x)) memcpy(&x, &nan, 4);
}

static uint16_t half_of(float x, double (*whole)(double)) {
  const double size = fabs((double)x);
  const int e = size == 0 || isinf(size) ? F16::LEAST : exponent_of(size, F16::LEAST);
  const double bits = (e - F16::LEAST) * 1024 + whole(ldexp(size, 10 - e));
  return isnan(x) ? 0x7fff : (signbit(x) ? 0x8000 : 0) | (bits < 0x7c00 ? (int)bits : 0x7c00);
}

static void cvt_rn_f16_f32(uint16_t &h, float x) { h = half_of(x, nearbyint); }
static void cvt_rz_f16_f32(uint16_t &h, float x) { h = half_of(x, trunc); }  // a plant

// A number with the bits behind those of f32 cut off.
static float cut(double x) {
  if (fabs(x) >= 0x1p128) return copysignf(INFINITY, (float)x);
  const float nearest = (float)x;
  return fabs((double)nearest) > fabs(x) ? nextafterf(nearest, 0) : nearest;
}

template <class T> static float eight(const double *a, const double *b, float c) {
  double exact = c;
  int most = c == 0 ? -1000 : exponent_of(c, -126);
  for (int k = 0; k < 8; ++k) {
    exact += a[k] * b[k];
    if (a[k] == 0 || b[k] == 0) continue;
    const int e = exponent_of(a[k], T::LEAST) + exponent_of(b[k], T::LEAST);
    if (e > most) most = e;
  }
  if (!isfinite(exact)) return (float)exact;
  double sum = trunc(ldexp((double)c, 24 - most));
  for (int k = 0; k < 8; ++k) sum += trunc(ldexp(a[k] * b[k], 24 - most));
  return cut(ldexp(sum, most - 24));
}

template <class T> static void mma(float &d0, float &d1, float &d2, float &d3, const uint32_t *a,
                                   const uint32_t *b, const float *c) {
  uint32_t words[6] = {a[0], a[1], a[2], a[3], b[0], b[1]};
  fibres::exchange(0xffffffffu, words, sizeof words);
  const unsigned first = fibres::current & ~31u, lane = fibres::current & 31u;
  double left[16][16], right[8][16];
  for (int other = 0; other < 32; ++other) {
    const uint32_t *held = fibres::all[first + other].value;
    for (int i = 0; i < 8; ++i)
      left[row_of_a(other, i)][column_of_a(other, i)] = T::value(held[i / 2] >> 16 * (i & 1) & 0xffff);
    for (int i = 0; i < 4; ++i)
      right[column_of_b(other)][row_of_b(other, i)] = T::value(held[4 + i / 2] >> 16 * (i & 1) & 0xffff);
  }
  float *sums[4] = {&d0, &d1, &d2, &d3};
  for (int i = 0; i < 4; ++i) {
    const double *x = left[row_of_c(lane, i)], *y = right[column_of_c(lane, i)];
    *sums[i] = eight<T>(x + 8, y + 8, eight<T>(x, y, c[i]));
  }
  fibres::leave(fibres::SHUFFLE);  // nobody puts the next words there before all have read
}

#define MMA(type, T) \
  static void mma_sync_aligned_m16n8k16_row_col_f32_##type##_##type##_f32( \
      float &d0, float &d1, float &d2, float &d3, uint32_t a0, uint32_t a1, uint32_t a2, \
      uint32_t a3, uint32_t b0, uint32_t b1, float c0, float c1, float c2, float c3) { \
    const uint32_t a[] = {a0, a1, a2, a3}, b[] = {b0, b1}; \
    const float c[] = {c0, c1, c2, c3}; \
    mma<T>(d0, d1, d2, d3, a, b, c); \
  }
MMA(bf16, Bf16)
MMA(f16, F16)

// --- 9.7.14.5.15: ldmatrix. Thread 8 j + r names row r of matrix j. ---

static uint16_t element(unsigned first, unsigned j, unsigned row, unsigned column) {
  const uint32_t address = fibres::all[first + 8 * j + row].value[0];
  if (address % 16) give_up("a row of a matrix does not begin where 16 bytes do");
  uint16_t found;
  memcpy(&found, shared(address) + 2 * column, 2);
  return found;
}
static void ldmatrix(bool turned, uint32_t **d, uint32_t address) {
  fibres::exchange(0xffffffffu, &address, 4);
  const unsigned first = fibres::current & ~31u, lane = fibres::current & 31u;
  for (unsigned j = 0; j < 4; ++j) {
    uint32_t halves[2];
    for (unsigned n = 0; n < 2; ++n) {
      const unsigned row = lane / 4, column = 2 * (lane % 4) + n;
      halves[n] = turned ? element(first, j, column, row) : element(first, j, row, column);
    }
    *d[j] = halves[0] | halves[1] << 16;
  }
  fibres::leave(fibres::SHUFFLE);
}
#define LDMATRIX(name, turned) \
  static void ldmatrix_sync_aligned_m8n8_x4_##name(uint32_t &d0, uint32_t &d1, uint32_t &d2, \
                                                   uint32_t &d3, uint32_t address) { \
    uint32_t *d[] = {&d0, &d1, &d2, &d3}; \
    ldmatrix(turned, d, address); \
  }
LDMATRIX(shared_b16, false)
LDMATRIX(trans_shared_b16, true)

// --- 9.7.9.25.3: cp.async. What is copied to is garbage until the thread has waited. ---

struct Copy {
  char *to;
  char bytes[16];
};
static std::vector<Copy> pending[MOST];

static void cp_async_cg_shared_global(uint32_t to, const void *from, int size) {
  if (to % 16 || (uintptr_t)from % 16) give_up("a copy's address is not a multiple of 16");
  Copy copy;
  copy.to = shared(to);
  memcpy(copy.bytes, from, size);
  memset(copy.to, 0x7b, size);  // numbers: sums that are not finite are made anew
  pending[fibres::current].push_back(copy);
}
static void cp_async_wait_all() {
  for (const Copy &copy : pending[fibres::current]) memcpy(copy.to, copy.bytes, 16);
  pending[fibres::current].clear();
}
static void forget_copies() {
  for (auto &copies : pending) copies.clear();
}

}  // namespace ptx
