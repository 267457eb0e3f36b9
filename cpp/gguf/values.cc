// Metadata values of every type of the format, numbers widened to 64 bits. May depend on: base.
// Next stop: gguf.cc, which reads keys and tensors around them.
#include "gguf/values.h"

#include <algorithm>
#include <vector>

namespace kvart::gguf_internal {
namespace {

enum class ValueType : uint32_t {
  kU8 = 0,
  kI8 = 1,
  kU16 = 2,
  kI16 = 3,
  kU32 = 4,
  kI32 = 5,
  kF32 = 6,
  kBool = 7,
  kString = 8,
  kArray = 9,
  kU64 = 10,
  kI64 = 11,
  kF64 = 12,
};

// The fewest bytes an element of this type takes in the file; 0 for arrays and for ids the format does not have.
uint64_t MinBytes(uint32_t type) {
  switch (static_cast<ValueType>(type)) {
    case ValueType::kU8:
    case ValueType::kI8:
    case ValueType::kBool: return 1;
    case ValueType::kU16:
    case ValueType::kI16: return 2;
    case ValueType::kU32:
    case ValueType::kI32:
    case ValueType::kF32: return 4;
    case ValueType::kU64:
    case ValueType::kI64:
    case ValueType::kF64:
    case ValueType::kString: return 8;
    case ValueType::kArray: return 0;
  }
  return 0;
}

// Reads a T and widens it to Wide.
template <class T, class Wide>
Status ReadAs(ByteReader* in, std::string_view what, Wide* out) {
  T value{};
  KVART_RETURN_IF_ERROR(in->Read(&value, what));
  *out = static_cast<Wide>(value);
  return Status::Ok();
}

Status ReadBool(ByteReader* in, std::string_view what, bool* out) {
  const uint64_t at = in->offset();
  uint8_t value = 0;
  KVART_RETURN_IF_ERROR(in->Read(&value, what));
  if (value > 1) return in->Corrupt(at, std::string(what) + " is a bool of " + std::to_string(value) + ", not 0 or 1");
  *out = value == 1;
  return Status::Ok();
}

// n elements, each by read(element). The caller has checked that the file can hold them.
template <class Element, class Read>
Status ReadElements(uint64_t n, GgufValue* out, Read read) {
  std::vector<Element> elements;
  elements.reserve(static_cast<size_t>(std::min(n, kReserveAtMost)));
  for (uint64_t i = 0; i < n; ++i) {
    Element element{};
    KVART_RETURN_IF_ERROR(read(&element));
    elements.push_back(element);
  }
  *out = GgufArray(std::move(elements));
  return Status::Ok();
}

template <class T, class Wide>
Status ReadNumbers(ByteReader* in, std::string_view what, uint64_t n, GgufValue* out) {
  return ReadElements<Wide>(n, out, [&](Wide* element) { return ReadAs<T, Wide>(in, what, element); });
}

template <class T, class Wide>
Status ReadNumber(ByteReader* in, std::string_view what, GgufValue* out) {
  Wide value{};
  KVART_RETURN_IF_ERROR((ReadAs<T, Wide>(in, what, &value)));
  *out = value;
  return Status::Ok();
}

// budget: how many more array elements this file may have.
Status ReadArray(ByteReader* in, std::string_view what, uint64_t* budget, GgufValue* out) {
  const uint64_t at = in->offset();
  uint32_t type = 0;
  uint64_t n = 0;
  KVART_RETURN_IF_ERROR(in->Read(&type, what));
  KVART_RETURN_IF_ERROR(in->Read(&n, what));
  if (static_cast<ValueType>(type) == ValueType::kArray) {
    return in->Fail(StatusCode::kUnsupported, at,
                    std::string(what) + " is an array of arrays: kvart reads flat ones only");
  }
  const uint64_t min_bytes = MinBytes(type);
  if (min_bytes == 0) {
    return in->Corrupt(at, std::string(what) + " is an array of type " + std::to_string(type) + "; types are 0 to 12");
  }
  if (n > in->remaining() / min_bytes) {
    return in->Corrupt(at + 4, std::string(what) + " claims " + std::to_string(n) + " elements of at least " +
                                   std::to_string(min_bytes) + " bytes, but the file has only " +
                                   std::to_string(in->remaining()) + " bytes more");
  }
  if (n > *budget) {
    return in->Fail(StatusCode::kUnsupported, at + 4,
                    std::string(what) + " has " + std::to_string(n) +
                        " elements: with the arrays before it more than " +
                        std::to_string(GgufFile::kMaxArrayElements) + ", the most that kvart reads");
  }
  *budget -= n;
  switch (static_cast<ValueType>(type)) {
    case ValueType::kU8: return ReadNumbers<uint8_t, uint64_t>(in, what, n, out);
    case ValueType::kI8: return ReadNumbers<int8_t, int64_t>(in, what, n, out);
    case ValueType::kU16: return ReadNumbers<uint16_t, uint64_t>(in, what, n, out);
    case ValueType::kI16: return ReadNumbers<int16_t, int64_t>(in, what, n, out);
    case ValueType::kU32: return ReadNumbers<uint32_t, uint64_t>(in, what, n, out);
    case ValueType::kI32: return ReadNumbers<int32_t, int64_t>(in, what, n, out);
    case ValueType::kU64: return ReadNumbers<uint64_t, uint64_t>(in, what, n, out);
    case ValueType::kI64: return ReadNumbers<int64_t, int64_t>(in, what, n, out);
    case ValueType::kF32: return ReadNumbers<float, double>(in, what, n, out);
    case ValueType::kF64: return ReadNumbers<double, double>(in, what, n, out);
    case ValueType::kBool:
      return ReadElements<bool>(n, out, [&](bool* element) { return ReadBool(in, what, element); });
    case ValueType::kString:
      return ReadElements<std::string_view>(n, out,
                                            [&](std::string_view* element) { return in->ReadString(element, what); });
    case ValueType::kArray: break;
  }
  return in->Fail(StatusCode::kInternal, at, "an array type was checked and not read");
}

}  // namespace

Status ReadValue(ByteReader* in, std::string_view what, uint64_t* budget, GgufValue* out) {
  const uint64_t at = in->offset();
  uint32_t type = 0;
  KVART_RETURN_IF_ERROR(in->Read(&type, what));
  switch (static_cast<ValueType>(type)) {
    case ValueType::kU8: return ReadNumber<uint8_t, uint64_t>(in, what, out);
    case ValueType::kI8: return ReadNumber<int8_t, int64_t>(in, what, out);
    case ValueType::kU16: return ReadNumber<uint16_t, uint64_t>(in, what, out);
    case ValueType::kI16: return ReadNumber<int16_t, int64_t>(in, what, out);
    case ValueType::kU32: return ReadNumber<uint32_t, uint64_t>(in, what, out);
    case ValueType::kI32: return ReadNumber<int32_t, int64_t>(in, what, out);
    case ValueType::kU64: return ReadNumber<uint64_t, uint64_t>(in, what, out);
    case ValueType::kI64: return ReadNumber<int64_t, int64_t>(in, what, out);
    case ValueType::kF32: return ReadNumber<float, double>(in, what, out);
    case ValueType::kF64: return ReadNumber<double, double>(in, what, out);
    case ValueType::kBool: {
      bool value = false;
      KVART_RETURN_IF_ERROR(ReadBool(in, what, &value));
      *out = value;
      return Status::Ok();
    }
    case ValueType::kString: {
      std::string_view value;
      KVART_RETURN_IF_ERROR(in->ReadString(&value, what));
      *out = value;
      return Status::Ok();
    }
    case ValueType::kArray: return ReadArray(in, what, budget, out);
  }
  return in->Corrupt(at, std::string(what) + " has the value type " + std::to_string(type) + "; types are 0 to 12");
}

}  // namespace kvart::gguf_internal
