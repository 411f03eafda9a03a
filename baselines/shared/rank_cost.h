// Rank-aware routing (CaraServe 5, Algorithm 1) on plain numbers, for any router: what one more
// request would cost the requests that a server has. Milliseconds throughout.
#ifndef SERVELAB_BASELINES_SHARED_RANK_COST_H_
#define SERVELAB_BASELINES_SHARED_RANK_COST_H_

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

namespace servelab {

// What the time of a batch's LoRA grows with.
enum class RankLoad : std::uint8_t {
  kPadded,  // requests x the largest rank: BGMV
  kSum,     // the sum of ranks: MBGMV
};

// The LoRA ranks of a set of requests.
struct Ranks {
  std::int64_t requests = 0;
  std::int64_t sum = 0;
  int max = 0;

  Ranks with(int rank) const { return with(Ranks{1, rank, rank}); }
  Ranks with(const Ranks& more) const {
    return {requests + more.requests, sum + more.sum, more.max > max ? more.max : max};
  }
};

// Latency of a batch: alpha_ms x its load + beta_ms.
struct RankLine {
  double alpha_ms = 0;
  double beta_ms = 0;
};

struct RankPoint {
  double load = 0;
  double latency_ms = 0;
};
// Least squares. None where the points have fewer than two distinct loads.
std::optional<RankLine> fit_line(std::span<const RankPoint> points);

struct RankModel {
  RankLoad load = RankLoad::kSum;
  RankLine prefill, decode;
  // What a batch of no requests takes: beta_ms, as the paper's formula says, or nothing. Then a
  // server that has a queue is the cheapest to wait at, since its next prefill costs no beta.
  bool idle_is_free = false;
};

double load_of(RankLoad load, const Ranks& ranks);
double latency_ms(const RankModel& model, const RankLine& line, const Ranks& ranks);

struct RankServer {
  Ranks queue;                // waiting for their prefill
  Ranks all;                  // those and the running ones
  std::int64_t requests = 0;  // all, those of the base model too
};

struct RankGoal {
  double output_tokens = 1;  // avg_resp_len
  double slo_ms = 0;         // per decoding step; 0: none
  double penalty_ms = 0;     // of a server that misses it with the request
};

// CalcCost: added prefill time, spread over the tokens of an answer, and added time per decoding
// step, with the penalty.
double added_cost_ms(const RankModel& model, const RankServer& server, int rank,
                     const RankGoal& goal);
// total_cost, whose least server gets the request; of equals the first. The cost of the server's
// requests together; for a request without an adapter (rank 0) their number.
double total_cost_ms(const RankModel& model, const RankServer& server, int rank,
                     const RankGoal& goal);

// The server that costs least of those that have room for the request (5: GPU memory), or of all
// where none has. Of equals the first that was offered.
class LeastCost {
 public:
  // `room_of` says whether it has; asked only where that can matter.
  template <class RoomOf>
  void offer(std::size_t server, double cost_ms, const RoomOf& room_of) {
    const bool is_less = !any_ || cost_ms < least_ms_;
    if (has_room_ && !is_less) return;
    const bool has_room = room_of();
    if (has_room == has_room_ ? !is_less : has_room_) return;
    any_ = true;
    server_ = server;
    least_ms_ = cost_ms;
    has_room_ = has_room;
  }
  void offer(std::size_t server, double cost_ms) {
    offer(server, cost_ms, [] { return true; });
  }
  std::size_t server() const { return server_; }  // once one was offered

 private:
  std::size_t server_ = 0;
  double least_ms_ = 0;
  bool has_room_ = false;
  bool any_ = false;
};

}  // namespace servelab

#endif  // SERVELAB_BASELINES_SHARED_RANK_COST_H_
