// How rank 0 meets the others: it listens, and sorts who comes by what they say of themselves.
#ifndef SERVELAB_BACKEND_RANKS_GATHERING_H_
#define SERVELAB_BACKEND_RANKS_GATHERING_H_

#include <memory>
#include <vector>

#include "engine/backend/ranks/rank_group.h"

namespace servelab::ranks {

// One peer for each of the ranks from 1 on. Connections that are not ours, that say nothing for 5
// s, or that do not know the secret are closed and counted. Throws SpecError where ranks are
// missing at the end of settings.patience; all that came are told. Where one that came is of
// another build, of another group, or there twice, it is refused, and in a group with a secret that
// is the end at once: those who come within 5 s are told.
std::vector<std::unique_ptr<Peer>> gather(const GroupSettings& settings);

}  // namespace servelab::ranks

#endif  // SERVELAB_BACKEND_RANKS_GATHERING_H_
