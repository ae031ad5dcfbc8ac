#include "sha256.h"

#include <algorithm>
#include <cstring>

namespace hopsml {
namespace {

constexpr uint32_t kRound[64] = {
    0x428a2f98, 0x71374491, 0xb5c0fbcf, 0xe9b5dba5, 0x3956c25b, 0x59f111f1, 0x923f82a4, 0xab1c5ed5,
    0xd807aa98, 0x12835b01, 0x243185be, 0x550c7dc3, 0x72be5d74, 0x80deb1fe, 0x9bdc06a7, 0xc19bf174,
    0xe49b69c1, 0xefbe4786, 0x0fc19dc6, 0x240ca1cc, 0x2de92c6f, 0x4a7484aa, 0x5cb0a9dc, 0x76f988da,
    0x983e5152, 0xa831c66d, 0xb00327c8, 0xbf597fc7, 0xc6e00bf3, 0xd5a79147, 0x06ca6351, 0x14292967,
    0x27b70a85, 0x2e1b2138, 0x4d2c6dfc, 0x53380d13, 0x650a7354, 0x766a0abb, 0x81c2c92e, 0x92722c85,
    0xa2bfe8a1, 0xa81a664b, 0xc24b8b70, 0xc76c51a3, 0xd192e819, 0xd6990624, 0xf40e3585, 0x106aa070,
    0x19a4c116, 0x1e376c08, 0x2748774c, 0x34b0bcb5, 0x391c0cb3, 0x4ed8aa4a, 0x5b9cca4f, 0x682e6ff3,
    0x748f82ee, 0x78a5636f, 0x84c87814, 0x8cc70208, 0x90befffa, 0xa4506ceb, 0xbef9a3f7, 0xc67178f2};

uint32_t turned(uint32_t x, int by) { return (x >> by) | (x << (32 - by)); }

}  // namespace

void Sha256::block(const uint8_t* data) {
  uint32_t w[64];
  for (int i = 0; i < 16; i++)
    w[i] = uint32_t(data[4 * i]) << 24 | uint32_t(data[4 * i + 1]) << 16 | uint32_t(data[4 * i + 2]) << 8 | data[4 * i + 3];
  for (int i = 16; i < 64; i++) {
    uint32_t low = turned(w[i - 15], 7) ^ turned(w[i - 15], 18) ^ (w[i - 15] >> 3);
    uint32_t high = turned(w[i - 2], 17) ^ turned(w[i - 2], 19) ^ (w[i - 2] >> 10);
    w[i] = w[i - 16] + low + w[i - 7] + high;
  }
  auto [a, b, c, d, e, f, g, h] = state_;
  for (int i = 0; i < 64; i++) {
    uint32_t first = h + (turned(e, 6) ^ turned(e, 11) ^ turned(e, 25)) + ((e & f) ^ (~e & g)) + kRound[i] + w[i];
    uint32_t second = (turned(a, 2) ^ turned(a, 13) ^ turned(a, 22)) + ((a & b) ^ (a & c) ^ (b & c));
    h = g, g = f, f = e, e = d + first, d = c, c = b, b = a, a = first + second;
  }
  const uint32_t sums[8] = {a, b, c, d, e, f, g, h};
  for (int i = 0; i < 8; i++) state_[i] += sums[i];
}

Sha256& Sha256::update(const void* data, size_t size) {
  auto* bytes = static_cast<const uint8_t*>(data);
  total_ += size;
  while (size > 0) {
    size_t part = std::min(size, rest_.size() - held_);
    std::memcpy(rest_.data() + held_, bytes, part);
    held_ += part, bytes += part, size -= part;
    if (held_ == rest_.size()) {
      block(rest_.data());
      held_ = 0;
    }
  }
  return *this;
}

Digest Sha256::finish() {
  uint64_t bits = total_ * 8;
  uint8_t padding[72] = {0x80};
  size_t size = (held_ < 56 ? 56 : 120) - held_;
  for (int i = 0; i < 8; i++) padding[size + i] = uint8_t(bits >> (56 - 8 * i));
  update(padding, size + 8);
  Digest digest;
  for (int i = 0; i < 32; i++) digest[i] = uint8_t(state_[i / 4] >> (24 - 8 * (i % 4)));
  return digest;
}

Digest hmac_sha256(const void* key, size_t key_size, const void* data, size_t size) {
  uint8_t inner[64] = {}, outer[64];
  if (key_size > sizeof inner) {
    Digest shorter = Sha256().update(key, key_size).finish();
    std::memcpy(inner, shorter.data(), shorter.size());
  } else if (key_size > 0) {
    std::memcpy(inner, key, key_size);
  }
  for (size_t i = 0; i < sizeof inner; i++) outer[i] = inner[i] ^ 0x5c, inner[i] ^= 0x36;
  Digest first = Sha256().update(inner, sizeof inner).update(data, size).finish();
  return Sha256().update(outer, sizeof outer).update(first.data(), first.size()).finish();
}

bool equal_in_constant_time(const Digest& a, const uint8_t* b) {
  unsigned differences = 0;
  for (size_t i = 0; i < a.size(); i++) differences |= a[i] ^ b[i];
  return differences == 0;
}

}  // namespace hopsml
