/* Tensor cores and copies into shared memory: one function for each PTX instruction. */

INLINE void multiply_bf16(f32 &d0, f32 &d1, f32 &d2, f32 &d3, u32 a0, u32 a1, u32 a2, u32 a3,
                          u32 b0, u32 b1) {
  asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32"
               " {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
               : "+f"(d0), "+f"(d1), "+f"(d2), "+f"(d3)
               : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}
INLINE void multiply_f16(f32 &d0, f32 &d1, f32 &d2, f32 &d3, u32 a0, u32 a1, u32 a2, u32 a3,
                         u32 b0, u32 b1) {
  asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32"
               " {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
               : "+f"(d0), "+f"(d1), "+f"(d2), "+f"(d3)
               : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}

INLINE u32 shared_address(const void *p) { return (u32)__cvta_generic_to_shared(p); }

INLINE void gather_matrices(u32 &w0, u32 &w1, u32 &w2, u32 &w3, const u32 *row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(w0), "=r"(w1), "=r"(w2), "=r"(w3)
               : "r"(shared_address(row))
               : "memory");
}
INLINE void gather_matrices_across(u32 &w0, u32 &w1, u32 &w2, u32 &w3,
                                   const u32 *row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(w0), "=r"(w1), "=r"(w2), "=r"(w3)
               : "r"(shared_address(row))
               : "memory");
}
INLINE void copy_16(u32 *to, const u32 *from) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16;"
               :
               : "r"(shared_address(to)), "l"(from)
               : "memory");
}
INLINE void copies_done() { asm volatile("cp.async.wait_all;" : : : "memory"); }
