/* Dot products of 32-bit words, and what rounds activations to such words.
   A dot product is one instruction where the processor has it, else spelled out; in wide ones the
   word of activations is the same for all lanes.
   Instructions are written as assembly: compilers differ in what they call them. */

INLINE int dot_bytes_i32(int a, unsigned w, unsigned x) {
  for (int i = 0; i < 32; i += 8) a += (int)(w >> i & 255) * (signed char)(x >> i);
  return a;
}
INLINE int dot_signed_bytes_i32(int a, unsigned w, unsigned x) { return dot_bytes_i32(a, x, w); }
INLINE float dot_bf16_f32(float a, unsigned w, unsigned x) {
  a += float_u32(w & 0xffff0000u) * float_u32(x & 0xffff0000u);
  return a + float_u32(w << 16) * float_u32(x << 16);
}

#if defined(__AVX512VNNI__) && defined(__AVX512F__)
/* Unsigned bytes times signed ones. gcc keeps sums of assembly in memory once a loop has many. */
INLINE vi32 vpdpbusd(vi32 a, vu32 u, vu32 s) {
#if defined(__clang__)
  __asm__("vpdpbusd %2, %1, %0" : "+v"(a) : "v"(u), "v"(s));
  return a;
#else
  return (vi32)__builtin_ia32_vpdpbusd_v16si((vi32)a, (vi32)u, (vi32)s);
#endif
}
INLINE vi32 dot_bytes_vi32(vi32 a, vu32 w, unsigned x) { return vpdpbusd(a, w, splat_vu32(x)); }
INLINE vi32 dot_signed_bytes_vi32(vi32 a, vu32 w, unsigned x) {
  return vpdpbusd(a, splat_vu32(x), w);
}
#else
INLINE vi32 dot_bytes_vi32(vi32 a, vu32 w, unsigned x) {
  for (int i = 0; i < 32; i += 8) a += (vi32)(w >> i & 255) * (int)(signed char)(x >> i);
  return a;
}
INLINE vi32 dot_signed_bytes_vi32(vi32 a, vu32 w, unsigned x) {
  for (int i = 0; i < 32; i += 8) a += ((vi32)(w << (24 - i)) >> 24) * (int)(x >> i & 255);
  return a;
}
#endif

#if defined(__AVX512BF16__) && defined(__AVX512F__)
INLINE vf32 dot_bf16_vf32(vf32 a, vu32 w, unsigned x) {
  __asm__("vdpbf16ps %2, %1, %0" : "+v"(a) : "v"(w), "v"(splat_vu32(x)));
  return a;
}
#else
INLINE vf32 dot_bf16_vf32(vf32 a, vu32 w, unsigned x) {
  a += (vf32)(w & 0xffff0000u) * float_u32(x & 0xffff0000u);
  return a + (vf32)(w << 16) * float_u32(x << 16);
}
#endif

/* The bytes of a table of 16, whose words are a to d, at the places that the bytes of w say. */
INLINE unsigned table_bytes_u32(unsigned w, unsigned a, unsigned b, unsigned c, unsigned d) {
  const unsigned t[4] = {a, b, c, d};
  unsigned found = 0;
  for (int i = 0; i < 32; i += 8)
    found |= (t[w >> i >> 2 & 3] >> (w >> i & 3) * 8 & 255) << i;
  return found;
}
#if defined(__AVX512BW__)
INLINE vu32 table_bytes_vu32(vu32 w, vu32 a, vu32 b, vu32 c, vu32 d) {
  const vu32 t = {a[0], b[0], c[0], d[0], a[0], b[0], c[0], d[0],
                  a[0], b[0], c[0], d[0], a[0], b[0], c[0], d[0]};
  __asm__("vpshufb %0, %1, %0" : "+v"(w) : "v"(t));
  return w;
}
#else
INLINE vu32 table_bytes_vu32(vu32 w, vu32 a, vu32 b, vu32 c, vu32 d) {
  vu32 found = w ^ w;
  for (int i = 0; i < 32; i += 8) {
    const vu32 n = w >> i & 15, word = n >> 2;
    const vu32 t = ((vu32)(word == 0) & a) | ((vu32)(word == 1) & b) |
                   ((vu32)(word == 2) & c) | ((vu32)(word == 3) & d);
    found |= (t >> (n & 3) * 8 & 255) << i;
  }
  return found;
}
#endif

/* Ops that move bytes across lanes, and bits within words (Language.permutes_bytes). */
#if defined(__AVX512VBMI__) && defined(__AVX512BW__)
INLINE vu32 permute_bytes_vu32(vu32 w, vu32 a, vu32 b) {
  __asm__("vpermi2b %2, %1, %0" : "+v"(w) : "v"(a), "vm"(b));
  return w;
}
INLINE vu32 select_bytes_vu32(vu32 m, vu32 a, vu32 b) {
  unsigned long mask; /* by itself: several selections have the same */
  __asm__("vpmovb2m %1, %0" : "=Yk"(mask) : "v"(m));
  __asm__("vpblendmb %1, %0, %0%{%2%}" : "+v"(b) : "v"(a), "Yk"(mask));
  return b;
}
INLINE vu32 bit_fields_vu32(vu32 w, vu32 p) {
  const unsigned up = 0x20202020; /* the second of two words begins there */
  p += (vu32){0, up, 0, up, 0, up, 0, up, 0, up, 0, up, 0, up, 0, up};
  __asm__("vpmultishiftqb %0, %1, %0" : "+v"(w) : "v"(p));
  return w;
}
INLINE vu32 negate_bytes_vu32(vu32 w, vu32 s, vu32 m) {
  __asm__("vptestmb %2, %1, %%k1\n\tvpsubb %0, %3, %0%{%%k1%}"
          : "+v"(w) : "v"(s), "v"(m), "v"(splat_vu32(0x80808080)) : "k1");
  return w;
}
#else
typedef unsigned char bytes_of_vu32 __attribute__((vector_size(64)));
INLINE vu32 permute_bytes_vu32(vu32 w, vu32 a, vu32 b) {
  const bytes_of_vu32 n = (bytes_of_vu32)w, low = (bytes_of_vu32)a, high = (bytes_of_vu32)b;
  bytes_of_vu32 found = n;
  for (int i = 0; i < 64; i++) found[i] = n[i] & 64 ? high[n[i] & 63] : low[n[i] & 63];
  return (vu32)found;
}
INLINE vu32 select_bytes_vu32(vu32 m, vu32 a, vu32 b) {
  const vu32 all = (m >> 7 & 0x01010101) * 255;
  return (a & all) | (b & ~all);
}
INLINE vu32 bit_fields_vu32(vu32 w, vu32 p) {
  vu32 found = w ^ w;
  for (int i = 0; i < 32; i += 8) found |= (w >> (p >> i & 31) & 255) << i;
  return found;
}
INLINE vu32 negate_bytes_vu32(vu32 w, vu32 s, vu32 m) {
  const bytes_of_vu32 set = (bytes_of_vu32)(s & m), n = (bytes_of_vu32)w;
  bytes_of_vu32 found = n;
  for (int i = 0; i < 64; i++) found[i] = set[i] ? 128 - n[i] : n[i];
  return (vu32)found;
}
#endif

/* One of 16 constants for each lane, by the lowest four bits of w (Language.permutes_words). */
INLINE vu32 table_words_vu32(vu32 w, vu32 a, vu32 b, vu32 c, vu32 d, vu32 e, vu32 f, vu32 g,
                             vu32 h, vu32 i, vu32 j, vu32 k, vu32 l, vu32 m, vu32 n, vu32 o,
                             vu32 p) {
  const vu32 t = {a[0], b[0], c[0], d[0], e[0], f[0], g[0], h[0],
                  i[0], j[0], k[0], l[0], m[0], n[0], o[0], p[0]};
#if defined(__AVX512F__)
  __asm__("vpermd %1, %0, %0" : "+v"(w) : "v"(t));
  return w;
#else
  vu32 found = w ^ w;
  for (int lane = 0; lane < 16; lane++) found[lane] = t[w[lane] & 15];
  return found;
#endif
}

/* Words of a table at 16 places: where there is an instruction, 6 ns instead of 10 on Zen 4. */
#if defined(__AVX512F__)
INLINE vu32 looked_up_vu32(const unsigned *table, vi32 places) {
  vu32 found = {0};
  __asm__("kxnorw %%k1, %%k1, %%k1\n\tvpgatherdd (%1,%2,4), %0%{%%k1%}"
          : "+&v"(found)
          : "r"(table), "v"(places), "m"(*(const unsigned(*)[1 << 20])table)
          : "k1");
  return found;
}
#else
INLINE vu32 looked_up_vu32(const unsigned *table, vi32 places) {
  vu32 found = {0};
  for (int i = 0; i < 16; i++) found[i] = table[places[i]];
  return found;
}
#endif

/* Times a power of two, or NaN: where there is an instruction that keeps no multiplier busy. */
INLINE float by_power_f32(float a, float p) { return a * p; }
#if defined(__AVX512F__)
INLINE vf32 by_power_vf32(vf32 a, vf32 p) {
  __asm__("vgetexpps %0, %0" : "+v"(p));
  __asm__("vscalefps %1, %0, %0" : "+v"(a) : "v"(p));
  return a;
}
#else
INLINE vf32 by_power_vf32(vf32 a, vf32 p) { return a * p; }
#endif

/* The nearest whole number of what fits; any number for the rest. */
INLINE int nearest_f32(float a) { return saturated_f32_i32(round_f32(a)); }
#if defined(__AVX512F__)
INLINE vi32 nearest_vf32(vf32 a) {
  vi32 n;
  __asm__("vcvtps2dq %1, %0" : "=v"(n) : "v"(a));
  return n;
}
#else
INLINE vi32 nearest_vf32(vf32 a) { return saturated_vf32_i32(round_vf32(a)); }
#endif

/* The lowest bytes of the lanes: gcc takes them out one by one. */
#if defined(__AVX512F__)
INLINE vi8 bytes_vi32(vi32 x) { vi8 b; __asm__("vpmovdb %1, %0" : "=v"(b) : "v"(x)); return b; }
#else
INLINE vi8 bytes_vi32(vi32 x) { return __builtin_convertvector(x, vi8); }
#endif

/* f16 in memory as f32: where there is an instruction, in one instead of seven. */
#if defined(__AVX512F__)
INLINE vf32 loaded_f16(vu16 h) { vf32 x; __asm__("vcvtph2ps %1, %0" : "=v"(x) : "v"(h)); return x; }
#else
INLINE vf32 loaded_f16(vu16 h) { return wide_f16_vf32(__builtin_convertvector(h, vu32)); }
#endif

/* Bytes as whole numbers of 32 bits, and as f32: gcc takes them out one by one. */
#if defined(__AVX512F__)
INLINE vi32 ints_vi8(vi8 b) { vi32 n; __asm__("vpmovsxbd %1, %0" : "=v"(n) : "v"(b)); return n; }
INLINE vi32 ints_vu8(vu8 b) { vi32 n; __asm__("vpmovzxbd %1, %0" : "=v"(n) : "v"(b)); return n; }
#else
INLINE vi32 ints_vi8(vi8 b) { return __builtin_convertvector(b, vi32); }
INLINE vi32 ints_vu8(vu8 b) { return __builtin_convertvector(b, vi32); }
#endif
INLINE vf32 floats_vi8(vi8 b) { return __builtin_convertvector(ints_vi8(b), vf32); }
INLINE vf32 floats_vu8(vu8 b) { return __builtin_convertvector(ints_vu8(b), vf32); }
