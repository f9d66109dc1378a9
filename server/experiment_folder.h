// A server's experiments as files in its own folder.
//
//   DIR/experiments/NAME.experiment           an experiment
//   DIR/experiments/NAME.experiment.damaged   one that was set aside
//
// A file is written beside the one that it replaces, synced, and put in its place.

#ifndef EBB_SERVER_EXPERIMENT_FOLDER_H_
#define EBB_SERVER_EXPERIMENT_FOLDER_H_

#include <memory>
#include <string>
#include <utility>

#include "server/experiment_store.h"
#include "server/files.h"

namespace ebb {

class ExperimentFolder final : public ExperimentStore {
 public:
  // Makes DIR/experiments in a folder that is there and this server's alone, and removes what was left half written.
  // UNAVAILABLE STORE_UNUSABLE.
  static absl::StatusOr<std::unique_ptr<ExperimentFolder>> Open(const std::string& dir);

  absl::StatusOr<Lefts> Find() override;
  absl::StatusOr<std::string> Read(const Left& left) override;
  absl::StatusOr<std::string> SetAside(const Left& left) override;
  absl::Status Leave(const std::string& /*place*/) override { return absl::OkStatus(); }  // there is no other server
  // REQUIRES: `merged` is empty, or this experiment, of which the file is replaced; likewise of Remove.
  absl::Status Write(const std::string& id, std::string_view image, const Lefts& merged) override;
  absl::Status Remove(const std::string& id, const Lefts& merged) override;
  bool HasBeenAway() override { return false; }

 private:
  explicit ExperimentFolder(OpenFile folder) : folder_(std::move(folder)) {}

  const OpenFile folder_;
};

}  // namespace ebb

#endif  // EBB_SERVER_EXPERIMENT_FOLDER_H_
