/* Parts of the collective's library that Python cannot reach: arithmetic against standards and slow implementations,
 * and parsers with random input. Exits with 0, or prints the failure. The argument: seconds for the random input. */
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "../collective/call.h"
#include "../collective/clock.h"
#include "../collective/element_types.h"
#include "../collective/handshake.h"
#include "../collective/parts.h"
#include "../collective/records.h"
#include "../collective/settlement.h"
#include "../collective/watch.h"
#include "../collective/wire_formats.h"

namespace {

using namespace hopsml;

void check(bool holds, const std::string& what) {
  if (holds) return;
  std::fprintf(stderr, "wrong: %s\n", what.c_str());
  std::exit(1);
}

std::string hex(const Digest& digest) {
  std::string text;
  for (uint8_t byte : digest) text += "0123456789abcdef"[byte >> 4], text += "0123456789abcdef"[byte & 15];
  return text;
}

std::string sha256(const std::string& text) { return hex(Sha256().update(text.data(), text.size()).finish()); }

/* The examples of FIPS 180-4 and of RFC 4231. */
void digests() {
  check(sha256("") == "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855", "SHA-256 of nothing");
  check(sha256("abc") == "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad", "SHA-256 of one block");
  check(sha256("abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq") ==
            "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1",
        "SHA-256 of two blocks");
  check(sha256(std::string(1000000, 'a')) == "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0",
        "SHA-256 of a million bytes");
  std::string key(20, '\x0b'), text = "Hi There";
  check(hex(hmac_sha256(key.data(), key.size(), text.data(), text.size())) ==
            "b0344c61d8db38535ca8afceaf0bf12b881dc200c9833da726e9376c2e32cff7",
        "HMAC");
  key = std::string(131, '\xaa'), text = "Test Using Larger Than Block-Size Key - Hash Key First";
  check(hex(hmac_sha256(key.data(), key.size(), text.data(), text.size())) ==
            "60e431591ee0b67f0d8a26aacbf5b77f8e0bc6213728c5140546040f0ee37f54",
        "HMAC with a long key");
}

/* The first examples of RFC 5869, of which a key is the first half, and of McGrew and Viega's Galois/Counter Mode. */
void ciphers() {
  std::string secret(22, '\x0b'), salt, purpose;
  for (char byte = 0; byte < 13; byte++) salt += byte;
  for (int byte = 0xf0; byte < 0xfa; byte++) purpose += char(byte);
  check(hex(derive_key(secret.data(), secret.size(), salt, purpose)) ==
            "3cb25f25faacd57a90434f64d0362f2a2d2d0a90cf1a5a4c5db02d56ecc4c5bf",
        "HKDF");
  Cipher cipher(CipherKind::kAes, Key{}, true);
  Digest shown{};
  cipher.update(shown.data(), shown.data(), 16);
  Tag tag = cipher.close();
  std::copy(tag.begin(), tag.end(), shown.begin() + 16);
  check(hex(shown) == "cea7403d4d606b6e074ec5d3baf39d18d0d1c8a799996bf0265b98b5d48ab919", "AES-256-GCM");
}

/* Each side derives the next key after the same record. */
void later_keys() {
  for (CipherKind kind : {CipherKind::kAes, CipherKind::kChaCha}) {
    Cipher sending(kind, Key{1}, true), receiving(kind, Key{1}, false);
    std::set<std::string> seen;
    size_t looked_at = 0;
    while (sending.records() < Cipher::kRecordsOfAKey + 3) {
      uint8_t byte = 7;
      sending.update(&byte, &byte, 1);
      Tag tag = sending.close();
      if (sending.records() % 1000 < 3) looked_at++, seen.insert(std::string(tag.begin(), tag.end()));
      receiving.update(&byte, &byte, 1);
      check(receiving.closes(tag) && byte == 7, "a record there and back");
    }
    check(seen.size() == looked_at, "no two records look alike");
  }
}

/* The value of a half by its definition. */
double half_value(uint16_t half) {
  int exponent = half >> 10 & 31, fraction = half & 1023;
  double size = exponent == 0 ? std::ldexp(fraction, -24) : std::ldexp(1024 + fraction, exponent - 25);
  return half & 0x8000 ? -size : size;
}

void halves(std::mt19937& chance) {
  for (uint32_t bits = 0; bits < 65536; bits++) {
    auto half = uint16_t(bits);
    bool is_special = (half & 0x7c00) == 0x7c00, is_nan = is_special && (half & 1023);
    float value = float_of_half(half);
    if (is_nan) {
      check(std::isnan(value) && (half_of_float(value) & 0x7c00) == 0x7c00 && (half_of_float(value) & 1023), "NaN of float16");
    } else {
      check(is_special ? std::isinf(value) : value == half_value(half), "float16 " + std::to_string(bits));
      check(half_of_float(value) == half, "float16 there and back " + std::to_string(bits));
      check(bfloat_of_float(float_of_bfloat(half)) == half || std::isnan(float_of_bfloat(half)), "bfloat16 there and back");
    }
  }
  /* halfway between two neighbours: to the even one; otherwise: to the nearer */
  for (uint16_t half = 0; half < 0x7bff; half++) {
    double middle = (half_value(half) + half_value(uint16_t(half + 1))) / 2;
    auto above = std::nextafter(float(middle), 1e9f), below = std::nextafter(float(middle), 0.0f);
    check(half_of_float(float(middle)) == (half % 2 ? half + 1 : half), "a tie " + std::to_string(half));
    check(half_of_float(above) == half + 1 && half_of_float(below) == half, "beside a tie " + std::to_string(half));
  }
  check(half_of_float(65519.9f) == 0x7bff && half_of_float(65520.0f) == 0x7c00, "the largest float16");
  for (int i = 0; i < 200000; i++) {
    float value = float_of_bits(uint32_t(chance()));
    if (std::isnan(value)) continue;
    float rounded = float_of_bfloat(bfloat_of_float(value));
    check(std::isinf(rounded) || std::fabs(rounded - value) <= std::ldexp(std::fabs(value), -8) || std::fabs(value) < 1e-37f,
          "bfloat16 of a number");
  }
}

void parts() {
  for (size_t count : {0, 1, 6, 7, 8, 1000})
    for (size_t of = 1; of < 9; of++) {
      size_t end = 0;
      for (size_t i = 0; i < of; i++) {
        Part part = part_of(count, of, i);
        check(part.begin == end, "parts follow each other");
        end = part.begin + part.count;
      }
      check(end == count, "parts are the whole");
    }
}

void wires(std::mt19937& chance) {
  std::normal_distribution<float> normal;
  for (hopsml_wire wire : {HOPSML_WIRE_FLOAT16, HOPSML_WIRE_BFLOAT16})
    for (float size : {1e-44f, 1e-30f, 1e-6f, 1.0f, 1e6f, 3e37f})
      for (size_t count : {size_t(1), size_t(7), kWireBlock}) {
        std::vector<float> values(count), back(count);
        float largest = 0;
        for (float& value : values) value = size * normal(chance), largest = std::max(largest, std::fabs(value));
        std::vector<uint8_t> bytes(encoded_size(wire, count));
        encode_block(wire, values.data(), count, bytes.data());
        decode_block(wire, bytes.data(), count, back.data());
        float close = wire == HOPSML_WIRE_FLOAT16 ? 1.0f / 2048 : 1.0f / 256;
        for (size_t i = 0; i < count; i++)
          check(std::fabs(back[i] - values[i]) <= close * largest + 1e-39f, "wire of " + std::to_string(size));
      }
  float special[4] = {INFINITY, -INFINITY, NAN, 70000.0f}, back[4];
  std::vector<uint8_t> bytes(encoded_size(HOPSML_WIRE_FLOAT16, 4));
  encode_block(HOPSML_WIRE_FLOAT16, special, 4, bytes.data());
  decode_block(HOPSML_WIRE_FLOAT16, bytes.data(), 4, back);
  check(back[0] == INFINITY && back[1] == -INFINITY && std::isnan(back[2]) && std::fabs(back[3] - 70000) < 40,
        "what is not finite, and more than float16 holds");
}

std::string noise(std::mt19937& chance, size_t size) {
  std::string bytes(size, '\0');
  for (char& byte : bytes) byte = char(chance());
  return bytes;
}

/* Notices: what was written is read; random bytes are refused or wait for more, and nothing is read beyond the end. */
void notices(std::mt19937& chance) {
  Notice said{NoticeKind::kFailed, HOPSML_PEER_LOST, 3, 7, noise(chance, chance() % 1500)};
  std::string bytes = encode(said), rest = bytes + "more";
  auto heard = decode(rest);
  check(heard && heard->rank == 3 && heard->call == 7 && heard->text == said.text.substr(0, kLongestNotice) && rest == "more",
        "a notice there and back");
  std::string part = bytes.substr(0, chance() % bytes.size());
  check(!decode(part), "part of a notice is none");
  for (int i = 0; i < int(chance() % 8); i++) bytes[chance() % bytes.size()] = char(chance());
  try {
    while (decode(bytes)) {
    }
  } catch (const Trouble&) {
  }
}

Key any_key(std::mt19937& chance) {
  Key key{};
  for (uint8_t& byte : key) byte = uint8_t(chance());
  return key;
}

/* Returns what a reader delivers of these bytes, received in pieces of any size; and whether it found a record that it
 * refuses. */
std::pair<std::string, bool> opened(const std::string& bytes, Cipher cipher, std::mt19937& chance) {
  RecordReader reader(std::move(cipher));
  std::string text;
  size_t at = 0;
  while (true) {
    RecordReader::State state = reader.open();
    if (state == RecordReader::State::kForged) return {text, true};
    if (state == RecordReader::State::kOpen) {
      while (size_t size = std::min<size_t>(reader.size(), 1 + chance() % 50000)) {
        text.append(reinterpret_cast<const char*>(reader.data()), size);
        reader.take(size);
      }
      continue;
    }
    iovec room = reader.room();
    check(room.iov_len > 0, "there is room for what makes a record whole");
    size_t size = std::min({room.iov_len, bytes.size() - at, size_t(1 + chance() % 70000)});
    if (size == 0) return {text, false};
    std::memcpy(room.iov_base, bytes.data() + at, size);
    reader.came(size), at += size;
  }
}

/* What was written is read; of a manipulated stream nothing is delivered beyond the part before the manipulation. */
void records(std::mt19937& chance) {
  CipherKind kind = chance() % 2 ? CipherKind::kAes : CipherKind::kChaCha;
  Key key = any_key(chance);
  RecordWriter writer(Cipher(kind, key, true));
  std::vector<std::string> rows;
  std::string text;
  for (size_t i = 0; i < 2 + chance() % 4; i++) {
    std::string more = noise(chance, 1 + chance() % (chance() % 2 ? 60 : 2 * kRecordBytes));
    writer.add(more.data(), more.size() / 2); /* in two pieces */
    writer.add(more.data() + more.size() / 2, more.size() - more.size() / 2);
    writer.close();
    rows.emplace_back(reinterpret_cast<const char*>(writer.data()), writer.size());
    writer.went(writer.size());
    text += more;
    bool is_hidden = more.size() < 8 || rows.back().find(more.substr(0, 8)) == std::string::npos;
    check(writer.empty() && is_hidden, "it is no longer to be read");
  }
  auto joined = [&] {
    std::string bytes;
    for (const std::string& row : rows) bytes += row;
    return bytes;
  };
  check(opened(joined(), Cipher(kind, key, false), chance) == std::make_pair(text, false), "records there and back");
  size_t place = chance() % (rows.size() - 1);
  switch (chance() % 5) {
    case 0: rows[place][chance() % rows[place].size()] ^= char(1 + chance() % 255); break;
    case 1: rows.insert(rows.begin() + long(place), rows[place]); break; /* one record is duplicated */
    case 2: rows.erase(rows.begin() + long(place)); break;
    case 3: std::swap(rows[place], rows[place + 1]); break;
    default: rows[place].resize(rows[place].size() - 1 - chance() % 16);
  }
  auto [found, refused] = opened(joined(), Cipher(kind, key, false), chance);
  check(found.size() < text.size() || refused, "what was spoiled is not taken for whole");
  check(text.compare(0, found.size(), found) == 0, "only what was written comes out");
}

/* A handshake with random bytes, or with the other side's messages changed, never succeeds. */
void handshakes(std::mt19937& chance) {
  Membership low, high;
  low.size = high.size = 2, high.rank = 1;
  low.secret = high.secret = std::vector<uint8_t>(16, 's');
  low.protection = Protection(chance() % 3), high.protection = Protection(chance() % 3);
  bool alike = (low.protection == Protection::kNone) == (high.protection == Protection::kNone);
  Handshake sides[2] = {Handshake::accepting(low), Handshake::connecting(high, 0, kData)};
  bool spoiled = false;
  for (int turn = 0; turn < 6; turn++) {
    Handshake &from = sides[(turn + 1) % 2], &to = sides[turn % 2];
    std::string message = std::move(from.outgoing());
    from.outgoing().clear();
    if (to.wanted() == 0 || message.size() != to.wanted()) continue;
    if (chance() % 4 == 0) {
      message = chance() % 2 ? noise(chance, message.size()) : message;
      message[chance() % message.size()] ^= char(1 + chance() % 255);
      spoiled = true;
    }
    to.read(reinterpret_cast<const uint8_t*>(message.data()));
  }
  Handshake::State wanted = alike ? Handshake::State::kProved : Handshake::State::kUnlike;
  bool both = sides[0].state() == wanted && sides[1].state() == wanted;
  check(both == !spoiled, "a handshake proves exactly what is true");
  check(alike || (sides[0].state() != Handshake::State::kProved && sides[1].state() != Handshake::State::kProved),
        "who encrypts is in no group with who does not");
  if (!both || !alike) return;
  auto first = sides[0].keys(), second = sides[1].keys();
  check(bool(first) == (low.protection != Protection::kNone) && bool(first) == bool(second), "both encrypt, or none");
  if (!first) return;
  check(first->kind == second->kind && first->sending == second->receiving && first->receiving == second->sending &&
            first->sending != first->receiving,
        "both have the same two keys");
  bool slow = low.protection == Protection::kSlowAes || high.protection == Protection::kSlowAes;
  check((first->kind == CipherKind::kChaCha) == slow, "the cipher that both are quick with");
}

/* A simulated group as in settlement.h, without data: members begin calls, have their results, send and receive
 * confirmations, die at any moment, and settle, with and without receiving the outcome. */
class Story {
 public:
  explicit Story(std::mt19937& chance) : chance_(chance) {
    for (int i = 0; i < 4; i++) members_.emplace_back();
    reform();
  }

  void go_on() {
    Member& one = members_[chance_() % members_.size()];
    switch (chance_() % 24) {
      case 0: one.alive = false; break;
      case 1: one.stopped = true; break; /* it gives up, in any state */
      case 2: reform(); break;
      default: step(one);
    }
  }

 private:
  struct Member {
    bool alive = true, stopped = false, in_call = false;
    uint64_t settled_in = 0;
    Standing standing;
  };
  using Word = std::pair<uint64_t, uint64_t>; /* of a generation and a call */

  /* Makes the next step of a member in a call. A member that began a call, and has sent a confirmation, may be dead by
   * now. */
  void step(Member& one) {
    if (!one.alive || one.stopped || one.settled_in != generation_) return;
    Word word{generation_, one.standing.completed + 1};
    auto index = size_t(&one - members_.data());
    if (!one.in_call) {
      one.in_call = true;
      begun_[word].insert(index);
    } else if (!one.standing.is_doubtful) {
      bool is_sent_by_one = word.second % 3 == 0; /* a broadcast: the others may have all of it before some begin */
      if (is_sent_by_one ? begun_[word].count(*group_.begin()) == 0 : begun_[word] != group_) return;
      one.standing.is_doubtful = true, one.standing.tried_in = generation_;
      whole_[word].insert(index);
    } else if (whole_[word] == group_) {
      complete(one, word.second, generation_);
    }
  }

  /* All members with a result of a call, now or before they died, have that of the same attempt; and none leaves one
   * out. */
  void complete(Member& one, uint64_t call, uint64_t attempt) {
    check(made_.emplace(call, attempt).first->second == attempt, "all have the same results");
    check(one.standing.completed + 1 == call, "no call is left out");
    one.in_call = one.standing.is_doubtful = false;
    one.standing.completed = call, one.standing.made_in = attempt;
  }

  /* Reforms with all living members, and a new one at times; each of them receives the outcome, or not. */
  void reform() {
    if (chance_() % 3 == 0) members_.emplace_back();
    generation_++;
    group_.clear();
    std::vector<Standing> standings;
    for (size_t i = 0; i < members_.size(); i++)
      if (members_[i].alive) group_.insert(i), standings.push_back(members_[i].standing);
    if (std::all_of(standings.begin(), standings.end(), [](const Standing& one) { return one.is_new; })) made_.clear();
    Standing settled = settle(standings, generation_);
    for (size_t index : group_) {
      Member& one = members_[index];
      one.stopped = false;
      if (chance_() % 5 == 0) continue;
      Standing& own = one.standing;
      if (own.is_doubtful && own.completed < settled.completed) complete(one, settled.completed, settled.made_in);
      own = settled;
      own.is_new = one.in_call = false;
      one.settled_in = generation_;
    }
  }

  std::mt19937& chance_;
  std::vector<Member> members_;
  std::set<size_t> group_; /* of the newest generation */
  uint64_t generation_ = 0;
  std::map<Word, std::set<size_t>> begun_, whole_;
  std::map<uint64_t, uint64_t> made_; /* call -> the generation of the attempt */
};

void settlements(std::mt19937& chance) {
  Story story(chance);
  for (int i = 0; i < 400; i++) story.go_on();
  Standing left_out{false, true, 4, 1, 2}, ahead{false, false, 5, 3, 3};
  for (bool doubtful : {true, false}) {
    left_out.is_doubtful = doubtful;
    try {
      settle({ahead, left_out}, 4);
      check(false, "who was left out cannot come back");
    } catch (const Trouble& trouble) {
      check(trouble.status == HOPSML_MISMATCH && trouble.rank == 1, "who was left out is named");
    }
  }
}

void calls(std::mt19937& chance) {
  CallHeader header;
  std::string bytes = noise(chance, sizeof header);
  std::memcpy(&header, bytes.data(), sizeof header);
  if (chance() % 2) header.magic = call_header(kBarrier, 0, HOPSML_UINT8, HOPSML_SUM, HOPSML_WIRE_SAME, 0, "").magic;
  check(!describe(header).empty(), "any header has a description");
}

}  // namespace

int main(int count, char** arguments) {
  std::mt19937 chance(1);
  digests();
  ciphers();
  later_keys();
  halves(chance);
  parts();
  wires(chance);
  double until = now() + (count > 1 ? std::atof(arguments[1]) : 0.2);
  while (now() < until) {
    notices(chance);
    handshakes(chance);
    records(chance);
    calls(chance);
    settlements(chance);
  }
}
