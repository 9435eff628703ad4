// Bits of what backward asks of an activation, and bytes for places of maxima.
//
// poet/runtime/kernels/packed.py does the same block by block where there is no compiled library; its tests hold the
// two against each other. Nothing here allocates. Bits of a byte stand lowest first.

#include <ATen/Parallel.h>
#include <c10/util/Half.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>

static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "bytes of a word stand lowest first");

#define POET_EXPORT extern "C" __attribute__((visibility("default")))

namespace {

constexpr int64_t kBlock = 2048;  // elements at once, a multiple of 8: their bytes stay in the first cache

constexpr uint64_t kEach = 0x0101010101010101;    // a one in every byte
constexpr uint64_t kOwnBit = 0x8040201008040201;  // byte k has bit k
constexpr uint64_t kGather = 0x0102040810204080;  // moves the ones of eight bytes into the highest byte

// A byte of 0 or 1 for each of `n` bits; `flags` has room for whole bytes of bits.
void spread(const uint8_t* bits, int64_t n, uint8_t* flags) {
  for (int64_t i = 0; i < (n + 7) / 8; ++i) {
    const uint64_t eight = (((bits[i] * kEach & kOwnBit) + 0x7f * kEach) >> 7) & kEach;
    std::memcpy(flags + 8 * i, &eight, 8);
  }
}

// A bit wherever x is not at most 0: NaN counts as above.
template <class T>
void pack(const T* x, int64_t n, uint8_t* bits) {
  uint8_t flags[kBlock];
  for (int64_t begin = 0; begin < n; begin += kBlock) {
    const int64_t size = std::min(kBlock, n - begin), bytes = (size + 7) / 8;
    for (int64_t i = 0; i < size; ++i) flags[i] = !(x[begin + i] <= 0);
    for (int64_t i = size; i < 8 * bytes; ++i) flags[i] = 0;
    for (int64_t i = 0; i < bytes; ++i) {
      uint64_t eight;
      std::memcpy(&eight, flags + 8 * i, 8);
      bits[begin / 8 + i] = static_cast<uint8_t>(eight * kGather >> 56);
    }
  }
}

// What is given where a bit is set, else all bits 0, which is +0.0.
template <class T>
void gate(const T* given, const uint8_t* bits, int64_t n, T* out) {
  uint8_t flags[kBlock];
  for (int64_t begin = 0; begin < n; begin += kBlock) {
    const int64_t size = std::min(kBlock, n - begin);
    spread(bits + begin / 8, size, flags);
    for (int64_t i = 0; i < size; ++i) out[begin + i] = given[begin + i] & static_cast<T>(-static_cast<T>(flags[i]));
  }
}

}  // namespace

// Whether there is a kernel for floats of that many bytes.
POET_EXPORT int poet_pack(const void* x, int64_t item_bytes, int64_t n, uint8_t* bits) {
  if (item_bytes == 4) pack(static_cast<const float*>(x), n, bits);
  if (item_bytes == 8) pack(static_cast<const double*>(x), n, bits);
  return item_bytes == 4 || item_bytes == 8;
}

POET_EXPORT void poet_gate(const void* given, const uint8_t* bits, int64_t item_bytes, int64_t n, void* out) {
  if (item_bytes == 2) gate(static_cast<const uint16_t*>(given), bits, n, static_cast<uint16_t*>(out));
  if (item_bytes == 4) gate(static_cast<const uint32_t*>(given), bits, n, static_cast<uint32_t*>(out));
  if (item_bytes == 8) gate(static_cast<const uint64_t*>(given), bits, n, static_cast<uint64_t*>(out));
}

// A product, not a choice: infinity times 0 is NaN, a negative number times 0 is -0.0.
POET_EXPORT void poet_masked(const float* x, const uint8_t* bits, int64_t n, float factor, float* out) {
  uint8_t flags[kBlock];
  for (int64_t begin = 0; begin < n; begin += kBlock) {
    const int64_t size = std::min(kBlock, n - begin);
    spread(bits + begin / 8, size, flags);
    for (int64_t i = 0; i < size; ++i) out[begin + i] = x[begin + i] * (flags[i] * factor);
  }
}

// For planes of `windows` maxima each: where they lie in their windows, from where they lie in their planes.
POET_EXPORT void poet_places(const int64_t* indices, int64_t planes, int64_t windows, const int64_t* first,
                             const uint8_t* place_of_offset, uint8_t* places) {
  for (int64_t plane = 0; plane < planes; ++plane)
    for (int64_t i = 0; i < windows; ++i)
      places[plane * windows + i] = place_of_offset[indices[plane * windows + i] - first[i]];
}

// The reverse. Places come from a file: whatever they are, indices are within 0 to `last`.
static inline int64_t index_of(uint8_t place, int64_t first, const int64_t* offset_of_place, int64_t kinds,
                               int64_t last) {
  return std::clamp<int64_t>(first + offset_of_place[std::min<int64_t>(place, kinds - 1)], 0, last);
}

POET_EXPORT void poet_indices(const uint8_t* places, int64_t planes, int64_t windows, const int64_t* first,
                              const int64_t* offset_of_place, int64_t kinds, int64_t last, int64_t* indices) {
  for (int64_t plane = 0; plane < planes; ++plane)
    for (int64_t i = 0; i < windows; ++i)
      indices[plane * windows + i] = index_of(places[plane * windows + i], first[i], offset_of_place, kinds, last);
}

// torch's own sums, in its order: a plane of `last` + 1 gradients gets those of its windows, one after the other.
POET_EXPORT void poet_max_pool_backward(const float* given, const uint8_t* places, int64_t planes,
                                        int64_t windows, const int64_t* first, const int64_t* offset_of_place,
                                        int64_t kinds, int64_t last, float* made) {
  std::fill(made, made + planes * (last + 1), 0.0f);
  for (int64_t plane = 0; plane < planes; ++plane) {
    float* out = made + plane * (last + 1);
    for (int64_t i = 0; i < windows; ++i)
      out[index_of(places[plane * windows + i], first[i], offset_of_place, kinds, last)] +=
          given[plane * windows + i];
  }
}

namespace {

#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__)
#define POET_CLONES __attribute__((target_clones("avx512f", "avx2", "default")))
#else
#define POET_CLONES
#endif

constexpr int64_t kNumbers = 32;  // of a block

float half_at(const uint8_t* at) {
  uint16_t bits;
  std::memcpy(&bits, at, 2);
  return c10::detail::fp16_ieee_to_fp32_value(bits);
}

POET_CLONES void of_nibbles(const uint8_t* packed, int64_t blocks, float* out) {
  for (int64_t i = 0; i < blocks; ++i, packed += 18, out += kNumbers) {
    const float scale = half_at(packed);
    for (int j = 0; j < 16; ++j) {
      out[j] = static_cast<float>((packed[2 + j] & 15) - 8) * scale;
      out[j + 16] = static_cast<float>((packed[2 + j] >> 4) - 8) * scale;
    }
  }
}

POET_CLONES void of_bytes(const uint8_t* packed, int64_t n, float scale, float* out) {
  for (int64_t j = 0; j < n; ++j) out[j] = static_cast<float>(static_cast<int8_t>(packed[j])) * scale;
}

// A row of `n` floats with one scale of its own: what poet/passes/base.py says, number for number.
uint8_t* quantised(const float* given, int64_t kind, int64_t n, uint8_t* to) {
  float largest = 0.0f, at_largest = 0.0f;
  for (int64_t j = 0; j < n; ++j)
    if (std::fabs(given[j]) > largest) largest = std::fabs(given[j]), at_largest = given[j];
  const float scale = kind == 0 ? at_largest / -8 : largest / 127, inverse = scale == 0 ? 0.0f : 1 / scale;
  if (kind == 2) {
    std::memcpy(to, &scale, 4);
    to += 4;
  } else {
    const uint16_t half = c10::detail::fp16_ieee_from_fp32_value(scale);
    std::memcpy(to, &half, 2);
    to += 2;
  }
  if (kind == 0) {
    uint8_t whole[kNumbers];
    for (int64_t j = 0; j < kNumbers; ++j) {
      const double moved = static_cast<double>(given[j]) * inverse + 8.5;
      whole[j] = static_cast<uint8_t>(moved > 0 ? (moved < 15 ? moved : 15) : 0);
    }
    for (int64_t j = 0; j < 16; ++j) to[j] = whole[j] | whole[j + 16] << 4;
    return to + 16;
  }
  for (int64_t j = 0; j < n; ++j) {
    const float scaled = given[j] * inverse, size = std::fabs(scaled), down = std::floor(size);
    const float away = std::copysign(down + std::floor(2 * (size - down)), scaled);
    const float rounded = kind == 1 ? away : std::nearbyint(scaled);
    to[j] = static_cast<uint8_t>(static_cast<int8_t>(rounded > -127 ? (rounded < 127 ? rounded : 127) : -127));
  }
  return to + n;
}

}  // namespace

// Rows of floats in q4_0, q8_0 or int8 (kind 0, 1, 2): the way back of what follows.
POET_EXPORT void poet_quantise(const float* given, int64_t kind, int64_t rows, int64_t columns, uint8_t* out) {
  const int64_t blocks = kind == 2 ? 1 : columns / kNumbers, n = columns / blocks;
  const int64_t bytes = kind == 0 ? 18 * blocks : kind == 1 ? 34 * blocks : columns + 4;
  at::parallel_for(0, rows, std::max<int64_t>(1, 32768 / columns), [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      uint8_t* to = out + row * bytes;
      for (int64_t i = 0; i < blocks; ++i) to = quantised(given + row * columns + n * i, kind, n, to);
    }
  });
}

// Rows of q4_0, q8_0 or int8 (kind 0, 1, 2) as floats: an integer times its scale. See poet/ir/packed.py.
POET_EXPORT void poet_dequantise(const uint8_t* packed, int64_t kind, int64_t rows, int64_t columns, float* out) {
  const int64_t blocks = columns / kNumbers, bytes = kind == 0 ? 18 * blocks : kind == 1 ? 34 * blocks : columns + 4;
  at::parallel_for(0, rows, std::max<int64_t>(1, 32768 / columns), [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      const uint8_t* from = packed + row * bytes;
      float* to = out + row * columns;
      if (kind == 0) {
        of_nibbles(from, blocks, to);
      } else if (kind == 1) {
        for (int64_t i = 0; i < blocks; ++i) of_bytes(from + 34 * i + 2, kNumbers, half_at(from + 34 * i), to + kNumbers * i);
      } else {
        float scale;
        std::memcpy(&scale, from, 4);
        of_bytes(from + 4, columns, scale, to);
      }
    }
  });
}
