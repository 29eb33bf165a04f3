// The kernel: one launch is one call of the layer on one rank. This screen is its table of contents.
//
//   first CTAs, all warps   route:        sort slots by expert; the first one: publish headers, await all headers, plan
//                                           (alone, a rank plans while it sorts)
//   all warps               prefetch_tokens: ask for tokens and router weights
//   last CTA, all warps     clean:        zero the counters of the next call (before it routes)
//   all warps               fill_input:   quantise (or copy) this rank's tokens for the owners to pull
//   load warp 0             load_weights: for each tile taken by ticket: announce it; for each 128 of K: stage weights
//   load warp 1             load_tokens:  for each announced tile: await its rows; for each 128 of K: stage rows, from
//                                           the pool, or (small calls of one rank) gathered from where they lie
//   store warp              store_tiles:  for each announced tile: await the math warps; first GEMM: store activations
//   from
//                                           staging, count the tile; second GEMM: count it, tell of done experts
//   dispatch warps          pull_rows:    for each row of this rank's experts: await it, copy it to the pool, count it
//                                           (not where they are gathered)
//                           combine:      for each token: await its experts, sum its rows in slot order
//   math warps              run_tiles:    both epilogues once for nothing, which brings their instructions (not where
//                                         operands are swapped); then
//                                         for each announced tile:
//                                           for each 128 of K: multiply, promote
//                                           (further rows of an expert's last tile with operands swapped)
//                                           first GEMM: SwiGLU, requantise, into staging
//                                           second GEMM: round to BF16, scatter rows to their sources
//                           combine:      with the dispatch warps
//   last warp to leave      finish:       error record and abort words if anything failed; advance the epoch
//
// After fill_input nothing but counters and barriers of these roles joins warps; docs/memory_model.md lists every
// release and its acquire. Combine is left out where a call was refused.
#pragma once

#include <type_traits>

#include "backends/sm90/ptx/registers.cuh"
#include "backends/sm90/roles/combine.cuh"
#include "backends/sm90/roles/input.cuh"
#include "backends/sm90/roles/load.cuh"
#include "backends/sm90/roles/math.cuh"
#include "backends/sm90/roles/math_swapped.cuh"
#include "backends/sm90/roles/report.cuh"
#include "backends/sm90/roles/store.cuh"

namespace megamoe::sm90 {

/// Barriers, counters and the epoch of this call. By all threads.
template <class Spec>
__device__ __forceinline__ void set_up(const KernelArgs& args, SharedStorage<Spec>& shared) {
  constexpr uint32_t kMathWarps = SharedStorage<Spec>::kMathWarps;
  const auto init = [](uint64_t& barrier, uint32_t arrivals) {
    ptx::mbarrier_init(ptx::shared_address(&barrier), arrivals);
  };
  if (threadIdx.x == 0) {
    for (uint32_t i = 0; i < Spec::kSpec.num_stages; ++i) {
      init(shared.stage_full[i], 2);  // the two load warps
      init(shared.stage_empty[i], kMathWarps);
    }
    for (uint32_t i = 0; i < Spec::kSpec.num_tile_slots; ++i) {
      init(shared.note_full[i], 1);
      init(shared.note_empty[i], kMathWarps + 2);  // and load_tokens, store_tiles
    }
    for (auto& buffers : shared.pulled)
      for (uint64_t& buffer : buffers) init(buffer, 1);
    init(shared.amax_full, kMathWarps);
    init(shared.dry_passes_done, kMathWarps * 32);
    init(shared.staged, kMathWarps);
    init(shared.staging_empty, 1);
    shared.warps_filled = 0;
    shared.warps_left = 0;
    shared.failure = {};
    if constexpr (Spec::kTrace)
      for (uint32_t& count : shared.trace_count) count = 0;
    shared.epoch = *args.view.layout.epoch.in(args.view.own()) + 1;
    ptx::mbarrier_init_fence();
  } else if (threadIdx.x == 32) {
    for (const CUtensorMap* map : {&args.maps.w13, &args.maps.w2, &args.maps.pool, &args.maps.pool_half,
                                   &args.maps.acts, &args.maps.acts_half, &args.maps.acts_store})
      ptx::prefetch_map(*map);
    if constexpr (Spec::kSpec.extra_m != 0) {
      ptx::prefetch_map(args.maps.pool_extra);
      ptx::prefetch_map(args.maps.acts_extra);
    }
  }
  __syncthreads();
}

/// The CTA's last warp ends the CTA; the grid's last CTA ends the call.
template <class Spec>
__device__ __forceinline__ void finish(Context<Spec>& c) {
  __syncwarp();
  constexpr uint32_t kLastWarp = Spec::kSpec.plan.num_warps() - 1;
  if (c.lane() != 0) return;
  c.chaos();
  if (ptx::count_acq_rel_cta(ptx::shared_address(&c.shared.warps_left), kLastWarp) != kLastWarp) return;
  if (has_failed(c.shared)) report_failure(c);
  __threadfence();
  if (atomicInc(&c.args.grid_state->ctas_left, gridDim.x - 1) != gridDim.x - 1) return;
  __threadfence();
  *c.own(c.layout().epoch) = c.epoch();  // for the next launch
  report_call(c);
}

template <class Spec>
__device__ __forceinline__ bool is_refused(Context<Spec>& c) {
  const protocol::RankSet& refused = c.args.grid_state->refused;
  return (__ldcg(&refused.words[0]) | __ldcg(&refused.words[1])) != 0;
}

/// The load, store and dispatch warps.
template <class Spec>
__device__ __forceinline__ void serve(Context<Spec>& c) {
  constexpr protocol::WarpPlan kPlan = Spec::kSpec.plan;
  constexpr uint32_t kLoad = kPlan.first_warp(Role::kLoad), kStore = kPlan.first_warp(Role::kStore);
  constexpr uint32_t kDispatch = kPlan.first_warp(Role::kDispatch);
  const uint32_t warp = c.warp();
  if (warp == kLoad) {
    load_weights(c);
  } else if (warp == kLoad + 1) {
    load_tokens(c);
  } else if (warp == kStore) {
    store_tiles(c);
  } else if (warp - kDispatch < kPlan.num_warps(Role::kDispatch)) {
    constexpr uint32_t kSteps = kPlan.registers(kDispatch) >= 72 ? 2 : 1;
    if (wait_plan(c, Role::kDispatch) && pull_rows(c, warp - kDispatch) && !is_refused(c))
      combine<4, kSteps, 400, true>(c);
  }
}

template <class Spec>
__global__ void __launch_bounds__(Spec::kSpec.plan.num_threads(), 1)
    moe_layer(const __grid_constant__ KernelArgs args) {
  constexpr protocol::WarpPlan kPlan = Spec::kSpec.plan;
  constexpr uint32_t kMath = kPlan.first_warp(Role::kMath), kEntry = kPlan.entry_registers();
  static_assert(sizeof(SharedStorage<Spec>) <= 232448, "more shared memory than a CTA of an SM90 GPU can have");
  extern __shared__ __align__(1024) uint8_t shared_bytes[];
  auto& shared = *reinterpret_cast<SharedStorage<Spec>*>(shared_bytes);
  set_up(args, shared);
  Context<Spec> c{args, shared};
  const uint32_t warp = c.warp();
  c.trace(protocol::Event::kSortSlots, false);

  prefetch_tokens(c);
  if (blockIdx.x == gridDim.x - 1) clean_idle_bank(c);
  route(c);
  c.trace(protocol::Event::kSortSlots, true);
  fill_input(c);
  c.trace(protocol::Event::kFillInput, true);

  if (warp >= kMath) {
    ptx::set_registers<kPlan.registers(kMath), kEntry>();
    std::conditional_t<Spec::kSpec.swaps_operands, SwappedMathWarp<Spec>, MathWarp<Spec>> math(c);
    constexpr uint32_t kSteps = kPlan.registers(kMath) >= 200 ? 4 : 1;  // each takes 40 registers
    // Whether the call is refused comes with the plan, which few slots have not waited for.
    if (math.run_tiles() && (!FewSlots::fit(c) || wait_plan(c, Role::kMath)) && !is_refused(c))
      combine<8, kSteps, 32, false>(c);
  } else if (kMath > 4 && warp >= 4) {
    ptx::set_registers<kPlan.registers(kMath - 1), kEntry>();
    serve(c);
  } else {
    ptx::set_registers<kPlan.registers(0), kEntry>();
    serve(c);
  }
  c.trace(protocol::Event::kCombineToken, true);
  finish(c);
}

}  // namespace megamoe::sm90
