// Matrix products with int8 activations.
#include "kernels/avx2/matmul_inl.h"
#include "kernels/avx2/packed_inl.h"
#include "kernels/tables.h"

namespace kvart::avx2 {

#define KVART_KERNEL(name, type)                      \
  void matmul_##name##_i8_avx2(const MatmulArgs& a) { \
    Matmul<Packed<DType::k##type>>(a);                \
  }
KVART_CODED_TYPES(KVART_KERNEL)
#undef KVART_KERNEL

}  // namespace kvart::avx2
