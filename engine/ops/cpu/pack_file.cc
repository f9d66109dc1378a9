#include "engine/ops/cpu/pack_file.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <utility>

#include "absl/strings/str_format.h"
#include "policies/check.h"

namespace ebb::cpu {
namespace {

constexpr char kMagic[8] = {'E', 'B', 'B', 'P', 'A', 'C', 'K', '\n'};
constexpr uint32_t kVersion = 1;
constexpr int64_t kFirst = 4096;  // where the first matrix lies
constexpr int64_t kPiece = int64_t{1} << 20;
constexpr int64_t kEntriesMax = int64_t{1} << 20;

constexpr uint64_t kSeed = 0xcbf29ce484222325;
constexpr uint64_t kOdd = 0x9e3779b97f4a7c15;

// One to one in either argument: whatever changes one of them changes the result.
uint64_t Mix(uint64_t sum, uint64_t word) { return std::rotl(sum ^ word, 29) * kOdd; }

// Eight sums beside each other, of every eighth word: they do not wait for one another. A change within one word is
// always found; any other with all but one chance in 2^64.
uint64_t SumOf(std::span<const std::byte> bytes) {
  std::array<uint64_t, 8> sums;
  sums.fill(kSeed);
  for (size_t at = 0; at < bytes.size(); at += 64) {
    std::array<uint64_t, 8> words;
    std::memcpy(words.data(), bytes.data() + at, 64);
    for (size_t i = 0; i < 8; ++i) sums[i] = Mix(sums[i], words[i]);
  }
  uint64_t sum = bytes.size();
  for (const uint64_t part : sums) sum = Mix(sum, part);
  return sum;
}

// The same of a whole matrix, in pieces: piece(i, bytes) has made those of piece i, or says that it could not.
template <typename Bytes, typename Piece>
uint64_t SumOfPieces(std::span<Bytes> bytes, Parallel& parallel, const Piece& piece) {
  const auto size = static_cast<int64_t>(bytes.size());
  std::vector<uint64_t> sums(static_cast<size_t>((size + kPiece - 1) / kPiece));
  parallel.For(static_cast<int64_t>(sums.size()), [&](int64_t i, int32_t /*thread*/) {
    const auto part =
        bytes.subspan(static_cast<size_t>(i * kPiece), static_cast<size_t>(std::min(kPiece, size - i * kPiece)));
    sums[static_cast<size_t>(i)] = piece(i * kPiece, part) ? SumOf(part) : 0;
  });
  uint64_t sum = kSeed;
  for (const uint64_t part : sums) sum = Mix(sum, part);
  return sum;
}

// A number for the name, type, shape and first bytes of a tensor.
uint64_t WhatIs(const TensorView& tensor) {
  uint64_t hash = kSeed;
  const auto add = [&hash](const char* bytes, size_t size) {
    for (size_t i = 0; i < size; ++i) hash = Mix(hash, static_cast<unsigned char>(bytes[i]));
  };
  const int64_t numbers[] = {static_cast<int64_t>(tensor.type), tensor.rows, tensor.cols};
  add(tensor.name.data(), tensor.name.size());
  add(reinterpret_cast<const char*>(numbers), sizeof numbers);
  add(reinterpret_cast<const char*>(tensor.data.data()), std::min<size_t>(tensor.data.size(), 4096));
  return hash;
}

bool GetAll(int fd, std::span<std::byte> to, int64_t at) {
  while (!to.empty()) {
    const ssize_t got = pread(fd, to.data(), to.size(), at);
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) return false;
    to = to.subspan(static_cast<size_t>(got));
    at += got;
  }
  return true;
}

void Close(int& fd) {
  if (fd >= 0) close(std::exchange(fd, -1));
}

std::string NameOfNew(const std::string& path) { return path + ".new"; }

}  // namespace

struct PackFile::Header {
  std::array<char, 8> magic = {};
  uint32_t version = 0, layout = 0;
  std::array<char, 16> fingerprint = {};
  int64_t model_bytes = 0, model_changed = 0;
  int64_t table_at = 0, entries = 0;
  uint64_t table_sum = 0;
  uint64_t sum = 0;  // of all before

  uint64_t Sum() const {
    uint64_t words[sizeof(Header) / 8] = {};
    std::memcpy(words, this, sizeof(Header));
    uint64_t made = kSeed;
    for (size_t i = 0; i + 1 < std::size(words); ++i) made = Mix(made, words[i]);
    return made;
  }
  static uint64_t SumOfTable(std::span<const Entry> table) {
    uint64_t made = kSeed;
    for (const Entry& entry : table) {
      made = Mix(Mix(made, entry.what), static_cast<uint64_t>(entry.at));
      made = Mix(Mix(made, static_cast<uint64_t>(entry.bytes)), entry.sum);
    }
    return made;
  }
  static std::array<char, 16> Characters(const std::string& fingerprint) {
    std::array<char, 16> characters = {};
    std::copy_n(fingerprint.begin(), std::min(characters.size(), fingerprint.size()), characters.begin());
    return characters;
  }
};

PackFile::PackFile(const std::string& path, const PackedModel& model) : path_(path), model_(model) {
  report_.path = path;
  old_ = open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);  // a pipe must not hang us
  if (old_ >= 0) {
    ReadTable();
  } else if (errno != ENOENT) {
    Ignore(absl::StrFormat("open failed: %s", std::strerror(errno)));
  }
}

PackFile::~PackFile() {
  Close(old_);
  if (new_ < 0) return;
  unlink(NameOfNew(path_).c_str());  // before the lock is gone with the descriptor
  Close(new_);
}

void PackFile::Ignore(const std::string& why) {
  if (report_.ignored.empty()) report_.ignored = absl::StrFormat("%s: %s", path_, why);
}

void PackFile::ReadTable() {
  struct stat status = {};
  Header header;
  const auto raw = std::as_writable_bytes(std::span(&header, 1));
  if (fstat(old_, &status) != 0 || !S_ISREG(status.st_mode)) return Ignore("expected a regular file");
  if (!GetAll(old_, raw, 0) || std::memcmp(header.magic.data(), kMagic, sizeof kMagic) != 0) {
    return Ignore("byte 0: expected a file of packed weights");
  }
  if (header.version != kVersion || header.layout != kPackLayout) {
    return Ignore(absl::StrFormat("byte 8: expected version %d, layout %d, found version %d, layout %d", kVersion,
                                  kPackLayout, header.version, header.layout));
  }
  if (header.sum != header.Sum()) return Ignore("byte 0: the header does not have its checksum");
  if (header.fingerprint != Header::Characters(model_.fingerprint)) {
    return Ignore(absl::StrFormat("it was made for the model %s, this one is %s",
                                  std::string(header.fingerprint.data(), header.fingerprint.size()),
                                  model_.fingerprint));
  }
  if (header.model_bytes != model_.bytes || header.model_changed != model_.changed) {
    return Ignore(absl::StrFormat("the model's file was changed since (%d bytes then, %d now)", header.model_bytes,
                                  model_.bytes));
  }
  const bool countable = header.entries >= 0 && header.entries <= kEntriesMax;
  const int64_t table_bytes = countable ? header.entries * static_cast<int64_t>(sizeof(Entry)) : 0;
  if (!countable || header.table_at < kFirst || status.st_size - table_bytes != header.table_at) {
    return Ignore(absl::StrFormat("byte %d: expected a table of %d matrices to end the file, of %d bytes",
                                  header.table_at, header.entries, int64_t{status.st_size}));
  }
  std::vector<Entry> table(static_cast<size_t>(header.entries));
  if (!GetAll(old_, std::as_writable_bytes(std::span(table)), header.table_at) ||
      Header::SumOfTable(table) != header.table_sum) {
    return Ignore(absl::StrFormat("byte %d: the table does not have its checksum", header.table_at));
  }
  for (const Entry& entry : table) {
    if (entry.at < kFirst || entry.bytes < 0 || entry.bytes > header.table_at ||
        entry.at > header.table_at - entry.bytes) {
      return Ignore(absl::StrFormat("byte %d: a matrix lies outside the file", header.table_at));
    }
  }
  found_ = std::move(table);
}

bool PackFile::Read(const TensorView& tensor, std::span<std::byte> to, Parallel& parallel) {
  EBB_CHECK(to.size() % 64 == 0);
  const size_t index = next_++;
  if (index >= found_.size()) {
    if (!found_.empty()) Ignore(absl::StrFormat("matrix %d (%s): expected it, found none", index, tensor.name));
    return false;
  }
  const Entry& entry = found_[index];
  if (entry.what != WhatIs(tensor) || entry.bytes != static_cast<int64_t>(to.size())) {
    Ignore(absl::StrFormat("byte %d: expected %s as matrix %d, found another", entry.at, tensor.name, index));
    return false;
  }
  const uint64_t sum = SumOfPieces(
      to, parallel, [&](int64_t at, std::span<std::byte> part) { return GetAll(old_, part, entry.at + at); });
  if (sum != entry.sum) {
    Ignore(absl::StrFormat("byte %d: matrix %d (%s) does not have its checksum", entry.at, index, tensor.name));
    return false;
  }
  ++report_.read;
  if (wants_new_) Append(entry.what, to, sum);
  return true;
}

void PackFile::Write(const TensorView& tensor, std::span<const std::byte> packed, Parallel& parallel) {
  ++report_.packed;
  if (!wants_new_) StartWriting();
  if (new_ < 0) return;
  const uint64_t sum =
      SumOfPieces(packed, parallel, [](int64_t /*at*/, std::span<const std::byte> /*part*/) { return true; });
  Append(WhatIs(tensor), packed, sum);
}

void PackFile::GiveUp(std::string_view call, int error) {
  report_.not_written = absl::StrFormat("%s: %s failed: %s", NameOfNew(path_), call, std::strerror(error));
  if (new_ >= 0) unlink(NameOfNew(path_).c_str());
  Close(new_);
}

int64_t PackFile::end() const { return made_.empty() ? kFirst : made_.back().at + made_.back().bytes; }

// What was read of the old file before the first matrix that it lacked goes into the new one.
void PackFile::StartWriting() {
  wants_new_ = true;
  const std::string name = NameOfNew(path_);
  new_ = open(name.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK, 0644);
  if (new_ < 0) return GiveUp("open", errno);
  // Whoever holds the lock writes; what a process that was killed left behind is written over. The lock may be that of
  // a file which has just got its final name: then it is not ours to write.
  struct stat ours = {}, named = {};
  if (flock(new_, LOCK_EX | LOCK_NB) != 0 || fstat(new_, &ours) != 0 || stat(name.c_str(), &named) != 0 ||
      ours.st_ino != named.st_ino || !S_ISREG(ours.st_mode)) {
    report_.not_written = absl::StrFormat("%s: another process writes it", name);
    return Close(new_);
  }
  if (ftruncate(new_, 0) != 0) return GiveUp("ftruncate", errno);
  std::vector<std::byte> piece(kPiece);
  const size_t before = std::min(next_ - 1, found_.size());
  for (size_t i = 0; i < before; ++i) {
    const Entry& entry = found_[i];
    const int64_t to = end();
    for (int64_t done = 0; done < entry.bytes; done += kPiece) {
      const auto part = std::span(piece).first(static_cast<size_t>(std::min(kPiece, entry.bytes - done)));
      if (!GetAll(old_, part, entry.at + done)) return GiveUp("pread", EIO);
      if (!PutAll(part, to + done)) return;
    }
    made_.push_back({.what = entry.what, .at = to, .bytes = entry.bytes, .sum = entry.sum});
  }
}

bool PackFile::PutAll(std::span<const std::byte> bytes, int64_t at) {
  while (!bytes.empty()) {
    const ssize_t put = pwrite(new_, bytes.data(), bytes.size(), at);
    if (put < 0 && errno == EINTR) continue;
    if (put <= 0) {
      GiveUp("write", put < 0 ? errno : ENOSPC);
      return false;
    }
    bytes = bytes.subspan(static_cast<size_t>(put));
    at += put;
  }
  return true;
}

void PackFile::Append(uint64_t what, std::span<const std::byte> packed, uint64_t sum) {
  if (new_ < 0) return;
  const Entry entry = {.what = what, .at = end(), .bytes = static_cast<int64_t>(packed.size()), .sum = sum};
  if (PutAll(packed, entry.at)) made_.push_back(entry);
}

PackReport PackFile::Finish() {
  found_.clear();
  Close(old_);
  if (new_ < 0) return report_;
  Header header = {.version = kVersion,
                   .layout = kPackLayout,
                   .fingerprint = Header::Characters(model_.fingerprint),
                   .model_bytes = model_.bytes,
                   .model_changed = model_.changed,
                   .table_at = end(),
                   .entries = static_cast<int64_t>(made_.size()),
                   .table_sum = Header::SumOfTable(made_)};
  std::copy_n(kMagic, sizeof kMagic, header.magic.begin());
  header.sum = header.Sum();
  if (!PutAll(std::as_bytes(std::span(made_)), header.table_at)) return report_;
  if (!PutAll(std::as_bytes(std::span(&header, 1)), 0)) return report_;
  if (std::rename(NameOfNew(path_).c_str(), path_.c_str()) != 0) {
    GiveUp("rename", errno);
    return report_;
  }
  Close(new_);
  report_.written = true;
  return report_;
}

}  // namespace ebb::cpu
