// How fast sessions are saved and restored over gRPC, beside what the disk takes and gives.
//
//   /usr/bin/python3 tests/support/make_models.py --preset perf-0.5b --type q8_0 -o /tmp/perf.gguf
//   build/release/tests/bench/snapshot_bench /tmp/perf.gguf FOLDER [tokens]
//
// FOLDER lies on a real disk. A session of `full` is fed so many tokens (4096). In turns: its snapshot's number of
// bytes is written to a file of that folder and synced; SaveSession; that file is read, and the session restored, each
// after the system was asked to forget its pages. Speeds are of bytes of the snapshot; ratios are taken within a round.

#include <fcntl.h>
#include <grpcpp/grpcpp.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_format.h"
#include "ebb/v1/inference.grpc.pb.h"
#include "ebb/v1/session.grpc.pb.h"
#include "policies/check.h"
#include "policies/status.h"
#include "server/log.h"
#include "server/server.h"
#include "tests/bench/bandwidth.h"
#include "tests/bench/rounds.h"

namespace ebb {
namespace {

namespace fs = std::filesystem;
const int kRounds = Rounds(9);
constexpr size_t kPiece = size_t{1} << 20;

void OrDie(const grpc::Status& status) {
  if (status.ok()) return;
  std::fprintf(stderr, "%s\n", status.error_message().c_str());
  std::exit(1);
}

void Forget(const fs::path& path) {
  const int file = open(path.c_str(), O_RDONLY | O_CLOEXEC);
  EBB_CHECK(file >= 0);
  EBB_CHECK(fdatasync(file) == 0);
  EBB_CHECK(posix_fadvise(file, 0, 0, POSIX_FADV_DONTNEED) == 0);
  close(file);
}

double SecondsToWrite(const fs::path& path, const std::string& bytes) {
  const double begin = Seconds();
  const int file = open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
  EBB_CHECK(file >= 0);
  for (size_t at = 0; at < bytes.size();) {
    const ssize_t written = write(file, bytes.data() + at, std::min(kPiece, bytes.size() - at));
    EBB_CHECK(written > 0);
    at += static_cast<size_t>(written);
  }
  EBB_CHECK(fdatasync(file) == 0);
  close(file);
  return Seconds() - begin;
}

double SecondsToRead(const fs::path& path) {
  std::string piece(kPiece, '\0');
  const double begin = Seconds();
  const int file = open(path.c_str(), O_RDONLY | O_CLOEXEC);
  EBB_CHECK(file >= 0);
  while (read(file, piece.data(), piece.size()) > 0) continue;
  close(file);
  return Seconds() - begin;
}

absl::Status Bench(const std::string& model, const std::string& folder, int32_t tokens) {
  EBB_ASSIGN(const std::unique_ptr<Log> log, StartLog({.level = LogLevel::kError}));
  EBB_ASSIGN(const std::unique_ptr<Server> server,
             Server::Start({.listen = {.host = "127.0.0.1", .port = 0},
                            .store_dir = folder + "/store",
                            .engine = {.model_path = model, .arena_bytes = int64_t{1} << 30}}));
  const auto channel = grpc::CreateChannel(FormatAddress(server->address()), grpc::InsecureChannelCredentials());
  const auto sessions = v1::SessionService::NewStub(channel);
  const auto inference = v1::InferenceService::NewStub(channel);

  v1::CreateSessionRequest create;
  create.set_session_id("saved");
  create.mutable_policy()->mutable_full();
  create.mutable_policy()->mutable_trigger()->set_budget(static_cast<uint32_t>(tokens));
  v1::Session session;
  grpc::ClientContext creating;
  OrDie(sessions->CreateSession(&creating, create, &session));
  v1::PrefillRequest prefill;
  prefill.set_session(session.name());
  for (int32_t i = 0; i < tokens; ++i) prefill.mutable_prompt()->mutable_tokens()->add_ids(3 + i * 7919 % 200);
  grpc::ClientContext prefilling;
  const auto blocks = inference->Prefill(&prefilling, prefill);
  v1::PrefillResponse block;
  while (blocks->Read(&block)) continue;
  OrDie(blocks->Finish());

  v1::SaveSessionRequest save;
  save.set_session(session.name());
  v1::SaveSessionResponse saved;
  v1::RestoreSessionRequest restore;
  restore.set_snapshot("snapshots/saved");
  restore.set_session_id("restored");
  v1::DeleteSessionRequest remove;
  remove.set_name("sessions/restored");
  const fs::path plain = fs::path(folder) / "plain";
  std::string bytes;
  std::vector<double> save_share, restore_share;
  for (int round = -1; round < kRounds; ++round) {  // the first warms up, and tells the snapshot's size
    const double writing = SecondsToWrite(plain, bytes);
    double begin = Seconds();
    grpc::ClientContext saving;
    OrDie(sessions->SaveSession(&saving, save, &saved));
    const double save_time = Seconds() - begin;
    const auto size = static_cast<double>(saved.snapshot().bytes());
    fs::path snapshot;
    for (const fs::directory_entry& entry : fs::recursive_directory_iterator(folder + "/store")) {
      if (entry.path().extension() == ".snapshot") snapshot = entry.path();
    }
    Forget(plain);
    Forget(snapshot);
    const double reading = SecondsToRead(plain);
    begin = Seconds();
    grpc::ClientContext restoring;
    v1::Session restored;
    OrDie(sessions->RestoreSession(&restoring, restore, &restored));
    const double restore_time = Seconds() - begin;
    grpc::ClientContext removing;
    v1::DeleteSessionResponse removed;
    OrDie(sessions->DeleteSession(&removing, remove, &removed));
    if (round < 0) {
      bytes.assign(static_cast<size_t>(size), '\1');
      for (size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<char>(i * 2654435761U >> 24);
      std::printf("%d tokens, a snapshot of %.1f MB; MB/s\n", tokens, size / 1e6);
      continue;
    }
    save_share.push_back(writing / save_time);
    restore_share.push_back(reading / restore_time);
    std::printf("round %d: written %.0f, saved %.0f; read %.0f, restored %.0f\n", round, size / writing / 1e6,
                size / save_time / 1e6, size / reading / 1e6, size / restore_time / 1e6);
  }
  std::printf("saved at %.2f of the disk's speed, restored at %.2f (medians)\n", Median(save_share),
              Median(restore_share));
  return absl::OkStatus();
}

}  // namespace
}  // namespace ebb

int main(int argc, char** argv) {
  if (argc < 3 || argc > 4) {
    std::fprintf(stderr, "usage: snapshot_bench MODEL.gguf FOLDER [tokens]\n");
    return 2;
  }
  const absl::Status status = ebb::Bench(argv[1], argv[2], argc > 3 ? std::atoi(argv[3]) : 4096);
  if (!status.ok()) std::fprintf(stderr, "snapshot_bench: %s\n", status.ToString().c_str());
  return status.ok() ? 0 : 1;
}
