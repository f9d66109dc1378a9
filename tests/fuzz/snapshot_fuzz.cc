// Any bytes as a snapshot; and the same with checksums that fit, since no fuzzer guesses one. What is taken opens as a
// session whose digest can be told, and which saves as what is read again. It is not run: what states and keys mean is
// taken on trust (snapshot_file.h).

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "engine/snapshot/session_image.h"
#include "policies/check.h"
#include "tests/fuzz/session_corpus_model.h"

namespace {

using ebb::Engine;
using ebb::Session;

void Read(Engine& engine, const std::string& bytes) {
  const auto records = ebb::ReadSnapshot(std::as_bytes(std::span(bytes)));
  if (!records.ok()) return;
  auto image = ebb::ReadSession(*records, engine.image_limits());
  if (!image.ok()) return;
  auto session = engine.Reopen(*image);
  if (!session.ok()) return;
  ebb::SnapshotWriter writer;
  EBB_CHECK(engine.Save(**session, writer).ok());
  const uint64_t digest = engine.Digest(**session);
  session->reset();  // there may not be pages for two
  std::string saved = writer.Finish();
  ebb::SealSnapshot(saved);
  const auto again = ebb::ReadSnapshot(std::as_bytes(std::span(saved)));
  EBB_CHECK(again.ok());
  auto same = ebb::ReadSession(*again, engine.image_limits());
  EBB_CHECK(same.ok());
  const auto reopened = engine.Reopen(*same);
  EBB_CHECK(reopened.ok());
  EBB_CHECK(engine.Digest(**reopened) == digest);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const std::unique_ptr<Engine> engine = ebb::OpenCorpusEngine();
  std::string bytes(reinterpret_cast<const char*>(data), size);
  Read(*engine, bytes);
  ebb::SealSnapshot(bytes);
  Read(*engine, bytes);
  return 0;
}
