#include "records.h"

#include <algorithm>
#include <cstring>

namespace hopsml {
namespace {

using Size = uint32_t;

constexpr size_t kAround = sizeof(Size) + sizeof(Tag);
constexpr size_t kFirstRoom = 4096; /* most connections for notices never need more */
constexpr size_t kRoom = kBytesAtOnce / kRecordBytes * (kRecordBytes + kAround);

}  // namespace

void RecordWriter::add(const void* data, size_t size) {
  auto* text = static_cast<const uint8_t*>(data);
  while (size > 0) {
    size_t begin = std::max(end_, record_ + sizeof(Size));
    size_t taken = std::min(size, record_ + sizeof(Size) + kRecordBytes - begin);
    if (bytes_.size() < begin + taken + sizeof(Tag)) bytes_.resize(begin + taken + sizeof(Tag));
    cipher_.update(text, bytes_.data() + begin, taken);
    end_ = begin + taken;
    text += taken, size -= taken;
    if (end_ - record_ == sizeof(Size) + kRecordBytes) close();
  }
}

void RecordWriter::close() {
  if (end_ == record_) return;
  auto size = Size(end_ - record_ - sizeof(Size));
  std::memcpy(bytes_.data() + record_, &size, sizeof size);
  Tag tag = cipher_.close();
  std::memcpy(bytes_.data() + end_, tag.data(), tag.size());
  end_ += tag.size();
  record_ = end_;
}

RecordReader::RecordReader(Cipher cipher) : cipher_(std::move(cipher)), bytes_(kFirstRoom) {}

iovec RecordReader::room() {
  if (begin_ > 0) {
    std::memmove(bytes_.data(), bytes_.data() + begin_, end_ - begin_);
    end_ -= begin_, begin_ = 0;
    opened_ = opened_end_ = 0;
  }
  return {bytes_.data() + end_, bytes_.size() - end_};
}

RecordReader::State RecordReader::open() {
  Size size;
  if (end_ - begin_ < sizeof size) return State::kPart;
  std::memcpy(&size, bytes_.data() + begin_, sizeof size);
  if (size == 0 || size > kRecordBytes) return State::kForged;
  if (size + kAround > bytes_.size()) bytes_.resize(kRoom);
  if (end_ - begin_ < size + kAround) return State::kPart;
  uint8_t* text = bytes_.data() + begin_ + sizeof size;
  Tag tag;
  std::memcpy(tag.data(), text + size, tag.size());
  cipher_.update(text, text, size);
  if (!cipher_.closes(tag)) return State::kForged;
  opened_ = begin_ + sizeof size, opened_end_ = opened_ + size;
  begin_ += size + kAround;
  return State::kOpen;
}

}  // namespace hopsml
