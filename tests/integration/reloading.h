// A server with a configuration that is read again while it runs.

#ifndef EBB_TESTS_INTEGRATION_RELOADING_H_
#define EBB_TESTS_INTEGRATION_RELOADING_H_

#include <gtest/gtest.h>
#include <httplib.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <memory>
#include <string>
#include <vector>

#include "tests/support/ebbd_process.h"
#include "tests/support/eventually.h"
#include "tests/support/temporary_folder.h"
#include "tests/support/test_server.h"

namespace ebb {

inline constexpr char kNeverLooks[] = "1h";

class Reload : public testing::Test {
 protected:
  // In the place of the file before, in one go.
  void Write(const std::string& text) const {
    std::ofstream(path_ + ".new") << text;
    std::filesystem::rename(path_ + ".new", path_);
  }
  static std::string Sessions(int max) { return "tenants:\n  acme:\n    sessions_max: " + std::to_string(max) + "\n"; }

  void Start(const std::string& looks_every) {
    ebbd_ = std::make_unique<EbbdProcess>(
        EBBD_BINARY, std::vector<std::string>{"--config=" + path_, "--model=" + model_.path(), "--cache.arena=32MiB",
                                              "--server.reload=" + looks_every});
    ASSERT_FALSE(ebbd_->address().empty()) << ebbd_->log();
    acme_ = std::make_unique<TestClient>(ebbd_->address(), "acme");
  }

  bool MayHaveAnother(const std::string& refused_as = "TENANT_SESSIONS") const {
    v1::Session session;
    const grpc::Status status = acme_->Create(SessionWith(StreamingPolicy(16)), &session);
    EXPECT_TRUE(status.ok() || client::ReadDetails(status).reason == refused_as) << client::Describe(status);
    return status.ok();
  }
  // The quota becomes `max`, whose sessions are not all there yet, some time.
  void ExpectRoom() const {
    EXPECT_TRUE(Eventually([&] { return MayHaveAnother(); }));
  }

  grpc::Status Ask(v1::ReloadConfigResponse* response) const {
    response->Clear();
    return acme_->admin().ReloadConfig(acme_->Context().get(), {}, response);
  }

  double Metric(const std::string& series) const {
    const auto answer = httplib::Client("http://" + ebbd_->http_address()).Get("/metrics");
    if (!answer) return -1;
    const size_t at = answer->body.find("\n" + series + " ");
    return at == std::string::npos ? -1 : std::strtod(answer->body.c_str() + at + series.size() + 2, nullptr);
  }

  const TemporaryFolder folder_;
  const std::string path_ = folder_.path() + "/ebb.yaml";
  const TinyModelFile model_{{}};
  std::unique_ptr<EbbdProcess> ebbd_;
  std::unique_ptr<TestClient> acme_;
};

}  // namespace ebb

#endif  // EBB_TESTS_INTEGRATION_RELOADING_H_
