// Identifiers: one enum class per kind, so that a request can never be passed where an adapter is
// meant. All are dense indices; `index()` gives the position in the owning table.
#ifndef SERVELAB_CORE_IDS_H_
#define SERVELAB_CORE_IDS_H_

#include <cstddef>
#include <cstdint>

namespace servelab {

enum class RequestId : std::uint32_t {};  // position in the workload, which is in arrival order
enum class AdapterId : std::uint32_t {};
enum class ModelId : std::uint16_t {};
enum class ReplicaId : std::uint16_t {};

inline constexpr RequestId kNoRequest{UINT32_MAX};
inline constexpr AdapterId kBaseModel{UINT32_MAX};  // "no adapter": the plain base model
inline constexpr ReplicaId kNoReplica{UINT16_MAX};

constexpr std::size_t index(RequestId id) { return static_cast<std::size_t>(id); }
constexpr std::size_t index(AdapterId id) { return static_cast<std::size_t>(id); }
constexpr std::size_t index(ModelId id) { return static_cast<std::size_t>(id); }
constexpr std::size_t index(ReplicaId id) { return static_cast<std::size_t>(id); }

}  // namespace servelab

#endif  // SERVELAB_CORE_IDS_H_
