// A step on the twin whose layers do not all take the same time: adapters that come layer by layer,
// and LoRA that the host begins and the device takes over.
#ifndef SERVELAB_BACKEND_TWIN_LAYERED_STEP_H_
#define SERVELAB_BACKEND_TWIN_LAYERED_STEP_H_

#include <cstdint>
#include <vector>

#include "engine/serve/backend.h"

namespace servelab {

// A load on a replica's link, which takes them one after the other.
struct LinkLoad {
  std::uint32_t what = 0;  // load_subject()
  TimeNs begin = 0;
  TimeNs ready = 0;
};

// One per replica; its memory is reused from step to step.
class LayeredStep {
 public:
  // Walks through the step's layers, the first of which begins at `start` when nothing holds it
  // back. Adds to `timing`, whose `cost` is that of a step without the rows on the host: waits
  // between layers, LoRA of those rows wherever it is computed, and in how many layers the host
  // did some. Results of the host take the link in turn with loads, so that each result takes twice
  // as long while something loads, and `loads` end later by as much.
  void run(const StepWork& work, const CostModel& cost, LoadPath path, TimeNs start,
           std::vector<LinkLoad>* loads, StepTiming* timing);

 private:
  struct OnHost {
    AdapterId adapter{};
    int rank = 0;
    std::size_t load = 0;  // in `loads`; where there is none it never comes, or is there
    bool never = false;
    bool here = false;
  };
  void look_up_adapters(const StepWork& work, LoadPath path);
  TimeNs take_over_at(const OnHost& adapter, TakeOver mode, LoadPath path, int layer) const;
  BatchShape shape_of_layer(const StepWork& work) const;

  int layers_ = 1;
  const std::vector<LinkLoad>* loads_ = nullptr;
  std::vector<std::size_t> awaited_;  // of loads: the device's own adapters
  std::vector<OnHost> on_host_;
  std::vector<bool> by_host_;  // of on_host_: in the layer at hand
};

}  // namespace servelab

#endif  // SERVELAB_BACKEND_TWIN_LAYERED_STEP_H_
