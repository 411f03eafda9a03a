// The adapters that an engine may serve: names for PEFT folders in an SQLite file, with the digest
// of what was registered. Several processes may use one registry at the same time.
#ifndef SERVELAB_MODEL_ADAPTER_REGISTRY_H_
#define SERVELAB_MODEL_ADAPTER_REGISTRY_H_

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "engine/core/units.h"
#include "engine/model/lora_weights.h"

struct sqlite3;

namespace servelab {

struct RegisteredAdapter {
  std::string name;
  std::string path;                  // of the folder, absolute
  std::string model;                 // name of the base model that it was checked against
  int rank = 0;                      // the largest of any layer
  std::vector<std::string> targets;  // of q, k, v, o, gate, up, down: adapted in some layer
  Bytes bytes = 0;                   // of its A and B matrices, as stored
  std::string sha256;                // of adapter_config.json and adapter_model.safetensors
  std::int64_t parameters = 0;       // of its A and B matrices; 0: registered by an older servelab
};

// Every failure is a SpecError of one line with the registry's file or the adapter's name. One
// object is for one thread at a time.
class AdapterRegistry {
 public:
  enum class Open { kExisting, kCreate };
  explicit AdapterRegistry(const std::string& path, Open open = Open::kExisting);
  ~AdapterRegistry();
  AdapterRegistry(const AdapterRegistry&) = delete;
  AdapterRegistry& operator=(const AdapterRegistry&) = delete;

  // Loads the folder as an adapter of `model` and registers it. Refuses a name that is taken.
  RegisteredAdapter add(const std::string& name, const std::string& folder,
                        const ModelConfig& model);
  void remove(const std::string& name);  // the folder stays

  std::vector<RegisteredAdapter> list() const;  // by name
  RegisteredAdapter find(const std::string& name) const;

  // Why an adapter cannot be served as registered: its folder is gone, damaged or replaced. Empty
  // when it can.
  static std::optional<std::string> problem(const RegisteredAdapter& adapter);

  // The adapter for serving `model`. Refuses one whose files are not those that were registered.
  std::shared_ptr<const LoraWeights> load(const std::string& name, const ModelConfig& model) const;

 private:
  void prepare_schema(Open open);
  void upgrade(std::int64_t from);

  std::string path_;
  sqlite3* database_ = nullptr;
};

}  // namespace servelab

#endif  // SERVELAB_MODEL_ADAPTER_REGISTRY_H_
