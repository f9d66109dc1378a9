// Who starts experiments and comes to their sessions.

#ifndef EBB_TESTS_INTEGRATION_EXPERIMENTING_H_
#define EBB_TESTS_INTEGRATION_EXPERIMENTING_H_

#include <gtest/gtest.h>

#include <cstdint>
#include <string>

#include "tests/support/test_server.h"

namespace ebb {

inline v1::ExperimentSpec TwoArms(const std::string& name, const std::string& tenant = "") {
  v1::ExperimentSpec spec;
  spec.set_name(name);
  spec.set_tenant(tenant);
  for (const char* arm : {"control", "wide"}) {
    v1::ExperimentArm& made = *spec.add_arms();
    made.set_name(arm);
    *made.mutable_policy() = StreamingPolicy(arm == std::string("wide") ? 200 : 24);
  }
  spec.set_metric(v1::EXPERIMENT_METRIC_SCORE);
  spec.set_units_min(20);
  return spec;
}

inline uint64_t UnitsOf(const v1::Experiment& experiment) {
  return experiment.results().arms(0).units() + experiment.results().arms(1).units();
}
inline uint64_t SessionsOf(const v1::Experiment& experiment) {
  return experiment.results().arms(0).sessions() + experiment.results().arms(1).sessions();
}

class Experimenter {
 public:
  explicit Experimenter(const std::string& address) : client_(address) {}

  TestClient& client() { return client_; }
  // Those that may be refused; `name` as a caller says it, "experiments/ID".
  grpc::Status TryStart(const v1::ExperimentSpec& spec, v1::Experiment* experiment) {
    v1::StartExperimentRequest request;
    *request.mutable_experiment() = spec;
    return client_.admin().StartExperiment(client_.Context().get(), request, experiment);
  }
  grpc::Status TryStop(const std::string& name, v1::Experiment* experiment) {
    v1::StopExperimentRequest request;
    request.set_name(name);
    return client_.admin().StopExperiment(client_.Context().get(), request, experiment);
  }
  grpc::Status TryRamp(const std::string& name, double ramp, v1::Experiment* experiment) {
    v1::RampExperimentRequest request;
    request.set_name(name);
    request.set_ramp(ramp);
    return client_.admin().RampExperiment(client_.Context().get(), request, experiment);
  }
  v1::Experiment Start(const v1::ExperimentSpec& spec) {
    v1::Experiment experiment;
    const grpc::Status status = TryStart(spec, &experiment);
    EXPECT_TRUE(status.ok()) << status.error_message();
    return experiment;
  }
  v1::Experiment Stop(const std::string& id) {
    v1::Experiment experiment;
    EXPECT_TRUE(TryStop("experiments/" + id, &experiment).ok());
    return experiment;
  }
  v1::Experiment Ramp(const std::string& id, double ramp) {
    v1::Experiment experiment;
    EXPECT_TRUE(TryRamp("experiments/" + id, ramp, &experiment).ok());
    return experiment;
  }
  grpc::Status TryGet(const std::string& id, v1::Experiment* experiment) {
    v1::GetExperimentRequest request;
    request.set_name("experiments/" + id);
    return client_.admin().GetExperiment(client_.Context().get(), request, experiment);
  }
  v1::Experiment Get(const std::string& id) {
    v1::Experiment experiment;
    EXPECT_TRUE(TryGet(id, &experiment).ok()) << id;
    return experiment;
  }
  v1::ListExperimentsResponse List() {
    v1::ListExperimentsResponse list;
    EXPECT_TRUE(client_.admin().ListExperiments(client_.Context().get(), {}, &list).ok());
    return list;
  }
  // A session of the user, which shows a score. The arm that it is in.
  std::string Come(const std::string& user) {
    v1::CreateSessionRequest create;
    create.set_end_user(user);
    const v1::Session session = client_.Create(create);
    v1::ReportOutcomeRequest report;
    report.set_session(session.name());
    report.set_score(session.arm() == "wide" ? 0.75 : 0.25);
    v1::ReportOutcomeResponse response;
    EXPECT_TRUE(client_.inference().ReportOutcome(client_.Context().get(), report, &response).ok());
    EXPECT_TRUE(client_.Delete(session.name()).ok());
    return session.arm();
  }

 private:
  TestClient client_;
};

}  // namespace ebb

#endif  // EBB_TESTS_INTEGRATION_EXPERIMENTING_H_
