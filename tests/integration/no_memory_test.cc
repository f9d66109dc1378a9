// A session or a model for which there is no memory is refused, and nothing of it stays. A program of its own, since it
// replaces operator new for all of it.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <cstdlib>
#include <limits>
#include <new>

#include "tests/support/test_server.h"

namespace {

// From this size on there is no memory.
std::atomic<std::size_t> scarce_bytes = std::numeric_limits<std::size_t>::max();

// Not inlined: where g++ 12 inlines it but not operator new, it takes the two for a mismatch.
[[gnu::noinline]] void Release(void* memory) { std::free(memory); }

}  // namespace

void* operator new(std::size_t bytes) {
  if (bytes >= scarce_bytes) throw std::bad_alloc();
  if (void* const memory = std::malloc(bytes == 0 ? 1 : bytes)) return memory;
  throw std::bad_alloc();
}
// The sanitizers have one of their own of each form that is not replaced, and find that it does not fit our delete.
void* operator new(std::size_t bytes, const std::nothrow_t& /*tag*/) noexcept {
  return bytes >= scarce_bytes ? nullptr : std::malloc(bytes == 0 ? 1 : bytes);
}
void operator delete(void* memory) noexcept { Release(memory); }
void operator delete(void* memory, const std::nothrow_t& /*tag*/) noexcept { Release(memory); }
void operator delete(void* memory, std::size_t) noexcept { Release(memory); }

namespace ebb {
namespace {

using client::ReadDetails;
using ::testing::HasSubstr;

TEST(NoMemory, RefusesTheSessionAndKeepsNothingOfIt) {
  const TestServer server([](ServerOptions& options) { options.engine.arena_bytes = 64 << 20; });
  TestClient client(server.address());
  // Its lists of tokens and positions are far larger than anything else that a call takes.
  const v1::CreateSessionRequest request = SessionWith(StreamingPolicy(100000));
  v1::Session session;
  scarce_bytes = 256 << 10;
  const grpc::Status status = client.Create(request, &session);
  scarce_bytes = std::numeric_limits<std::size_t>::max();
  EXPECT_EQ(status.error_code(), grpc::StatusCode::UNAVAILABLE);
  EXPECT_EQ(ReadDetails(status).reason, "NO_MEMORY");
  EXPECT_TRUE(ReadDetails(status).retry.has_value());
  EXPECT_EQ(client.Status().work().sessions(), 0U);
  EXPECT_EQ(client.Status().cache().pages_reserved(), 0U);
  EXPECT_TRUE(client.Create(request, &session).ok()) << "there is memory again";
}

TEST(NoMemory, FailsTheModelThatIsLoadedAndNobodyElse) {
  TestServer server;
  TestClient client(server.address());
  const auto of_other = [&client] {
    v1::ListModelsResponse models;
    EXPECT_TRUE(client.admin().ListModels(client.Context().get(), {}, &models).ok());
    return models.models(1);
  };
  // The list of its pages is longer than anything else that is made here.
  const TinyModelFile file({.seed = 2});
  const ModelTable models = {{"other", {.path = file.path(), .threads = 1, .arena_bytes = 1 << 30}}};
  scarce_bytes = 256 << 10;
  EXPECT_TRUE(server.server().SetModels(models, absl::ZeroDuration()).ok());
  while (of_other().state() == v1::MODEL_STATE_LOADING) continue;
  scarce_bytes = std::numeric_limits<std::size_t>::max();
  EXPECT_EQ(of_other().state(), v1::MODEL_STATE_FAILED);
  EXPECT_THAT(of_other().problem(), HasSubstr("no more memory"));
  client.Create({});
  EXPECT_TRUE(server.server().SetModels(models, absl::ZeroDuration()).ok());
  while (of_other().state() != v1::MODEL_STATE_SERVING) continue;
}

}  // namespace
}  // namespace ebb
