// Inside quant only: the super-blocks of 256 columns. May depend on: quant.h.
#pragma once

#include "quant/quant.h"

namespace kvart::quant_internal {

// x: (256,) finite; w: (256,), the weight of each column's squared error, ≥ 0 and not all zero. Q2_K to Q6_K.
void EncodeSuperBlock(DType type, const float* x, const float* w, uint8_t* block);

}  // namespace kvart::quant_internal
