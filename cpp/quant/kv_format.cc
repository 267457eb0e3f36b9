#include "quant/kv_format.h"

namespace kvart {
namespace {

constexpr const char* kNames =
    "f32, f16, int8, int4, int4-sym, int4-token or int4-knorm, and -g32, -g64 or -g128 behind an integer one";

// Takes a suffix off; says whether it was there.
bool Take(std::string_view* name, std::string_view suffix) {
  if (name->size() < suffix.size() || name->substr(name->size() - suffix.size()) != suffix) return false;
  name->remove_suffix(suffix.size());
  return true;
}

Result<KvFormat> Parse(std::string_view name, bool keys) {
  const std::string_view whole = name;
  KvFormat f;
  if (name == "f32" || name == "f16") {
    f.code = name == "f32" ? KvCode::kF32 : KvCode::kF16;
    return f;
  }
  if (Take(&name, "-g32"))
    f.group = 32;
  else if (Take(&name, "-g64"))
    f.group = 64;
  else if (Take(&name, "-g128"))
    f.group = 128;
  f.axis = keys ? KvAxis::kChannel : KvAxis::kToken;
  f.code = name == "int8" ? KvCode::kInt8 : KvCode::kInt4;
  if (name == "int4-sym") {
    f.symmetric = true;
  } else if (name == "int4-token") {
    f.axis = KvAxis::kToken;
    if (f.group == 0) f.group = 32;  // as peers do it
  } else if (name == "int4-knorm" && f.group == 0) {
    if (keys) f.axis = KvAxis::kToken;
    f.norm = keys;
  } else if (name != "int4" && name != "int8") {
    return Status(StatusCode::kInvalidArgument, std::string(keys ? "key" : "value") + " format '" +
                                                    std::string(whole.substr(0, 64)) + "'; wanted " + kNames);
  }
  return f;
}

}  // namespace

std::string ToString(const KvFormat& f, bool keys) {
  if (f.is_float()) return f.code == KvCode::kF32 ? "f32" : "f16";
  std::string name = f.code == KvCode::kInt8 ? "int8" : "int4";
  if (f.symmetric) name += "-sym";
  if (f.norm)
    name += "-knorm";
  else if (keys && f.axis == KvAxis::kToken)
    name += "-token";
  if (f.group != 0) name += "-g" + std::to_string(f.group);
  return name;
}

Result<KvFormats> ParseKvFormats(std::string_view k_name, std::string_view v_name) {
  KvFormats formats;
  KVART_ASSIGN_OR_RETURN(formats.k, Parse(k_name, true));
  KVART_ASSIGN_OR_RETURN(formats.v, Parse(v_name, false));
  return formats;
}

}  // namespace kvart
