// Says which golden data the tests use: `make test` shows no output of what passed.

#include "tests/support/golden_folder.h"

#include <cstdio>

int main() {
  const std::string folder = ebb::GoldenFolderOrPart();
  int families = 0;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) families += entry.path().extension() == ".json";
  if (ebb::GoldenFolder().empty()) {
    std::printf(
        "golden data: the part in %s, %d families. The whole was not found (EBB_GOLDEN, default ../shared/golden):\n"
        "  its other families were not run, and the tests GoldenFiles were skipped\n",
        folder.c_str(), families);
  } else {
    std::printf("golden data: the whole folder %s, %d families\n", folder.c_str(), families);
  }
  return 0;
}
