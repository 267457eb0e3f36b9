// The generated Unicode data: classes and NFC, exactly as the reference tokenizer has them.
// May depend on: nothing. Next for the token: unicode.cc looks characters up here.
#pragma once

#include <cstddef>
#include <cstdint>

namespace kvart::unicode_tables {

struct CombiningRange {
  uint32_t first, last;
  uint8_t combining_class;
};
struct Decomposition {
  uint32_t code_point;
  uint16_t offset, length;  // full canonical decomposition in kDecompositionPool
};
struct Composition {
  uint32_t first, second, composite;
};

// All sorted. Hangul syllables are computed and stand in no table.
extern const uint32_t kProperties[];  // (first code point of a run) << 8 | properties
extern const size_t kPropertiesCount;
extern const CombiningRange kCombining[];
extern const size_t kCombiningCount;
extern const Decomposition kDecompositions[];
extern const size_t kDecompositionsCount;
extern const uint32_t kDecompositionPool[];
extern const Composition kCompositions[];
extern const size_t kCompositionsCount;

}  // namespace kvart::unicode_tables
