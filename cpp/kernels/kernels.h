// The kernel table: pure functions over pointers and strides, one row a kernel, one table an instruction set.
// May depend on: base, quant. Next for the token: backend/cpu composes these into the decoder's operations.
//
// Every kernel is defined down to the bit, so all instruction sets give equal results, and a row's result does not
// depend on how many rows are computed with it. Each definition below is the order of the float operations; sums of
// integers are exact.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

#include "base/status.h"
#include "quant/dtype.h"
#include "quant/kv_block.h"
#include "quant/kv_fine.h"
#include "quant/packed.h"

namespace kvart {

// 32 neighbouring activations of one row as int8: value = scale * q, scale = max|x| / 127, q rounded to nearest even.
// pair_sums[2 h + p] is the sum over the columns i of half h = i / 16 with (i % 4) / 2 == p: what an int16 lane of a
// dot instruction adds up, so that a kernel with unsigned codes can start its accumulator at -zero * pair_sum. Behind
// those of the halves, pair_sums[4 + p], are those of all columns. sum = float(Σ q) * scale, for formats with a min.
struct ActivationBlock {
  float scale, sum;
  int16_t pair_sums[6];
  int8_t q[32];
};
static_assert(sizeof(ActivationBlock) == 52);

enum class Activations { kFloat, kInt8 };

// out[i][r - row_begin] (+)= sum over columns of W[r][c] * x[i][c] (+ bias[r]) for rows row_begin <= r < row_end.
// W is what UnpackCodes gives, also where activations are float: Q8_0's code -128, which no encoder writes, is -127.
//   int8:  acc = 0; per block b of 32 columns, per scale s of it (one for 32 columns or two for 16 each):
//          acc = fma(float(integer dot), scale_s * x.scale, acc); if the format has a min, acc = fma(min_s,
//          float(integer sum of x) * x.scale, acc)
//   float: acc = 0; per block of 32 columns: t = 0; t = fma(w, x, t) column by column; acc = acc + t
//   then:  acc = acc + bias[r]; out = acc, or out = out + acc
struct MatmulArgs {
  const uint8_t* weights = nullptr;    // the whole matrix, in the kernel's packing
  int64_t cols = 0;                    // a multiple of 32
  int64_t row_begin = 0, row_end = 0;  // row_begin is a multiple of 8
  const void* x = nullptr;             // (n, cols / 32) ActivationBlock, or (n, cols) float
  int64_t n = 0;
  float* out = nullptr;  // (n, out_stride): column 0 is row row_begin
  int64_t out_stride = 0;
  const float* bias = nullptr;  // (all rows) or none
  bool accumulate = false;
  uint8_t* scratch = nullptr;  // MatmulScratchBytes(cols), aligned to 64
};
// Enough for any kernel's unpacked tile.
inline size_t MatmulScratchBytes(int64_t cols) {
  return static_cast<size_t>(cols) * 8 * sizeof(float) * 2 + 4096;
}

struct MatmulKernel {
  const char* name;  // the symbol: matmul_<weights>_<activations>_<isa>
  DType type;
  Activations activations;
  Packing packing;
  void (*run)(const MatmulArgs&);
};

// Joins a page's share (m, l, o) into the running one (M, L, O), page after page in order. With M' = max(M, m), a =
// Exp2(M - M'), b = Exp2(m - M'): L = fma(l, b, L * a), O[d] = fma(o[d], b, O[d] * a). Rows with m = -inf leave the
// running ones untouched.
struct AttendMergeArgs {
  int64_t n_rows = 0;
  int head_dim = 0;
  const float *m = nullptr, *l = nullptr, *o = nullptr;
  float *run_m = nullptr, *run_l = nullptr, *run_o = nullptr;  // start at -inf, 0, 0
};

constexpr int kMaxPageTokens = 256;

// Memory that is read next. Pages lie apart, so the CPU's own fetching ahead begins anew with each.
struct Ahead {
  const uint8_t* begin = nullptr;
  size_t bytes = 0;
};
// Fetches it a share at a time, in each step of a kernel's loop: all at once would wait for itself.
class Fetcher {
 public:
  [[gnu::always_inline]] Fetcher(const Ahead& ahead, int steps)
      : at_(ahead.begin),
        end_(ahead.begin + (ahead.bytes + kLine - 1) / kLine * kLine),
        share_((ahead.bytes / kLine / static_cast<size_t>(steps > 0 ? steps : 1) + 1) * kLine) {}
  [[gnu::always_inline]] void Step() {
    const uint8_t* stop = static_cast<size_t>(end_ - at_) > share_ ? at_ + share_ : end_;
    for (; at_ < stop; at_ += kLine) __builtin_prefetch(at_);
  }

 private:
  static constexpr size_t kLine = 64;
  const uint8_t *at_, *end_;
  size_t share_;
};

// ---- Attention over one page in three steps: scores of keys, softmax, mix of values; each step knows one format only.
constexpr int kMaxAttendRows = 8;  // query rows at a time that share what is loaded

// s[r][t] = q[r] · k[t] for t < tokens, in the order of operations of the key format:
//   float:    fma over channels in order
//   integers, a scale a channel, per group of tokens:
//             u_c = q_c * scale_c; z = u as int8 (as in ActivationBlock, one scale `step` for all channels); what that
//             leaves, fma(-z_c, step, u_c), as int8 again: z', step'. (The few wide channels of Qwen's keys set `step`;
//             one term would be a fifth of the cache's whole error.) Keys with fine rows (KvFormat::fine): those are
//             the wide channels, they count 0 here and belong to RefineArgs, and one term is enough: z' is left out
//             base = fma(q_c, centre_c) in eight lanes (c % 8), LaneSum
//             4 bits: s = fma(float(Σ z'_c (2 n_c - 15)), 0.5 * step', fma(float(Σ z_c (2 n_c - 15)), 0.5 * step,
//             base)) 8 bits: s = fma(float(Σ z'_c n_c), step', fma(float(Σ z_c n_c), step, base))
//   integers, a scale a token, per group of channels in order: z, step, and base = sum of q_c in eight lanes are those
//   of the group;
//             s = fma(float(Σ …), 0.5 * step * (scale_t * norm_t), s), then s = fma(base, centre_t * norm_t, s); s
//             starts at 0; norm only where kept
struct ScoreArgs {
  const uint8_t* k = nullptr;      // float: (tokens of the page / 8, head_dim, 8); integers: a KvBlock
  const KvBlock* block = nullptr;  // its layout; none for float
  KvFine::Head fine;               // channels that are left to RefineArgs
  int head_dim = 0;
  int tokens = 0;                        // what is wanted; s beyond, up to a multiple of 8, is unspecified
  int n_rows = 0;                        // at most kMaxAttendRows
  const float* const* q = nullptr;       // (n_rows) of (head_dim)
  float (*s)[kMaxPageTokens] = nullptr;  // (n_rows), aligned to 32 bytes
  Ahead ahead;
};
struct ScoreKernel {
  const char* name;  // score_<format>_<isa>
  KvCode code;
  KvAxis axis;  // of integers
  void (*run)(const ScoreArgs&);
};

// The channels of a head's fine rows, behind its score kernel: for each row i in order, with c its channel, n_t the
// 4-bit code in the block and m_t the second code: s[r][t] = fma(q[r][c] * scale_c, (16 n_t + m_t) * 0.0625 - 7.96875,
// s[r][t]) for t < tokens. (Where n and m stand for n - 7.5 and (m - 7.5) / 16, exactly.)
struct RefineArgs {
  const uint8_t* k = nullptr;
  const KvBlock* block = nullptr;
  KvFine::Head fine;
  int tokens = 0;                        // s beyond, up to a multiple of 16, is unspecified
  int n_rows = 0;                        // at most kMaxAttendRows
  const float* const* q = nullptr;       // (n_rows) of (head_dim)
  float (*s)[kMaxPageTokens] = nullptr;  // (n_rows), aligned to 64 bytes
};

// In place, per row r over first <= t < visible[r]: m = max s; s_t = Exp2(s_t - m), 0 outside, up to `tokens`; l = sum
// in eight lanes (t % 8), LaneSum. Nothing to see gives m = -inf, l = 0. tokens: those of the block where a mix of
// integers follows, which reads all of them; otherwise the most visible. Up to a multiple of 16 may be written.
struct SoftmaxArgs {
  int first = 0, tokens = 0, n_rows = 0;
  const int32_t* visible = nullptr;      // (n_rows)
  float (*s)[kMaxPageTokens] = nullptr;  // (n_rows), aligned to 64 bytes
  float *m = nullptr, *l = nullptr;      // (n_rows)
};

// o[r][d] = Σ_t p[r][t] * v[t][d], t < visible[r]:
//   float:    fma over t in order
//   integers, per group of channels: w_t = p_t * scale_t; z = w as int8 over the whole page, one `step`; base =
//   fma(p_t, centre_t) in eight
//             lanes (t % 8), LaneSum;  4 bits: o = fma(float(Σ z_t (2 n_t - 15)), 0.5 * step, base); 8 bits: o =
//             fma(float(Σ z_t n_t), step, base)
struct MixArgs {
  const uint8_t* v = nullptr;
  const KvBlock* block = nullptr;
  int head_dim = 0;
  int n_rows = 0;
  const int32_t* visible = nullptr;            // (n_rows); integers: weights are 0 beyond, and the whole page is read
  const float (*p)[kMaxPageTokens] = nullptr;  // (n_rows)
  float* const* o = nullptr;                   // (n_rows) of (head_dim)
  Ahead ahead;
};
struct MixKernel {
  const char* name;  // mix_<format>_<isa>
  KvCode code;
  void (*run)(const MixArgs&);
};

struct KernelTable {
  const char* name;                       // "scalar", "avx2", "avx512", "neon", "neon_i8mm"
  const KernelTable* fallback = nullptr;  // where to look for a row that is not here; scalar's comes last
  std::span<const MatmulKernel> matmul;   // in order of preference
  std::span<const ScoreKernel> score;
  void (*refine)(const RefineArgs&);
  void (*softmax)(const SoftmaxArgs&);
  std::span<const MixKernel> mix;
  void (*attend_merge)(const AttendMergeArgs&);
  // y[i][c] = (x[i][c] * r) * w[c], r = 1 / sqrt(sum of squares / cols + eps); squares by fma in eight lanes, LaneSum.
  // cols % 8 == 0.
  void (*rms_norm)(const float* x, const float* w, float eps, int64_t n, int64_t cols, float* y);  // x, y: (n, cols)
  void (*quantize)(const float* x, int64_t n_blocks, ActivationBlock* y);                          // x: (n_blocks * 32)
  // y = g / (1 + Exp2(-g * log2 e)) * u
  void (*silu_mul)(const float* g, const float* u, int64_t n, float* y);
  void (*to_half)(const float* x, int64_t n, uint16_t* y);
};

// Exp2(x) as every kernel computes it, for x <= 0 in attention and any x in SiLU: x is cut to [-126, 126]; n = x
// rounded to nearest even by adding 1.5 * 2^23; f = x - n; a polynomial of degree 6 by Horner with fma; 2^n by adding n
// to the exponent. Relative error below 2e-7; Exp2(0) is exactly 1.
inline constexpr float kExp2Limit = 126.0f;
inline constexpr float kExp2Round = 12582912.0f;
inline constexpr float kExp2[7] = {1.0f,           0.693147182f,   0.240226462f,   0.0555041102f,
                                   0.00961812902f, 0.00133335579f, 0.000154035309f};
inline constexpr float kLog2E = 1.44269504f;
// LaneSum(a) = ((a0 + a4) + (a2 + a6)) + ((a1 + a5) + (a3 + a7)).

// The table for this machine, or the one KVART_KERNELS names. InvalidArgument when that is unknown or the CPU lacks it.
Result<const KernelTable*> SelectKernels(std::string_view forced);
std::span<const KernelTable* const> UsableKernels();  // best first, scalar last

// The kernel for weights of this type, or nullptr. Float formats take float activations whatever is asked.
const MatmulKernel* FindMatmul(const KernelTable& table, DType type, Activations activations);
const ScoreKernel* FindScore(const KernelTable& table, const KvFormat& format);
const MixKernel* FindMix(const KernelTable& table, const KvFormat& format);

}  // namespace kvart
