// A model by its path: a GGUF file, or a folder as hubs lay it out (hub_model.h), and what lies beside it.

#ifndef EBB_ENGINE_MODEL_MODEL_PATH_H_
#define EBB_ENGINE_MODEL_MODEL_PATH_H_

#include <string>

namespace ebb {

bool IsModelFolder(const std::string& model_path);

// A folder's path as people name the folder: models/Llama-3.1-8B/ -> models/Llama-3.1-8B; of `.` and `..`, which name
// none, the whole path.
std::string FolderPath(const std::string& path);

// models/a.gguf -> models/a.heads.json; the folder models/Llama-3.1-8B -> models/Llama-3.1-8B.heads.json.
std::string PathBeside(const std::string& model_path, const char* ending);

}  // namespace ebb

#endif  // EBB_ENGINE_MODEL_MODEL_PATH_H_
