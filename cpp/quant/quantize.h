// Rows of weights into any block format, with a search for the scales that lose least. May depend on: base, quant.h.
// Next stop: nothing in inference; the converter and `kvart quantize` write rows with this.
#pragma once

#include <cstdint>

#include "base/status.h"
#include "quant/dtype.h"

namespace kvart {

// Whether QuantizeRow writes this type: all but IQ4_XS.
bool CanQuantize(DType type);

// src: (n,) → dst: RowBytes(type, n) bytes. importance: (n,), how much the square of an error in a column costs, none
// negative; nullptr: unknown, and then the formats of EncodeRow come out exactly as it writes them. A block whose
// importances are all zero is taken as one where they are unknown. InvalidArgument when n is not whole blocks and for
// values that the type cannot hold (NaN and infinity in all types; beyond 65504 in F16); Unsupported for other types.
// The bytes depend on the arguments alone.
Status QuantizeRow(DType type, const float* src, int64_t n, const float* importance, uint8_t* dst);

}  // namespace kvart
