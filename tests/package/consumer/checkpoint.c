/* A layer of a checkpoint through the installed C interface: loaded by ranks, routed, run; then what is refused.
 * Arguments: a folder whose layer 1 has 8 experts of which 2, H = 128, I = 64, and 3 shared ones with a gate; and one
 * with 4 experts, H = 256. */
#include <math.h>
#include <megamoe/megamoe.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include "check.h"

#define H 128
#define I 64
#define E 8
#define K 2
#define M 3
#define T 5

static float x32[T * H];
static uint16_t x[T * H], y[T * H], y_again[T * H];
static int64_t ids[T * K];
static float weights[T * K], shared_weights[T * M];

static megamoe_tensor matrix(void* data, megamoe_dtype dtype, int64_t num_rows, int64_t num_cols) {
  megamoe_tensor t;
  memset(&t, 0, sizeof t);
  t.data = data;
  t.dtype = dtype;
  t.num_dims = 2;
  t.shape[0] = num_rows;
  t.shape[1] = num_cols;
  t.strides[0] = num_cols;
  t.strides[1] = 1;
  return t;
}

static int same_shape(const megamoe_tensor* t, megamoe_dtype dtype, int dims, const int64_t* shape) {
  if (t->dtype != dtype || t->num_dims != dims || t->device != 0 || t->data == NULL) return 0;
  return memcmp(t->shape, shape, (size_t)dims * sizeof *shape) == 0;
}

static int check_info(const megamoe_checkpoint* checkpoint) {
  megamoe_checkpoint_info info;
  memset(&info, 0, sizeof info);
  CHECK(megamoe_checkpoint_describe(checkpoint, &info) == MEGAMOE_INVALID_ARGUMENT); /* struct_bytes is 0 */
  info.struct_bytes = sizeof info;
  CHECK(megamoe_checkpoint_describe(checkpoint, &info) == MEGAMOE_OK);
  CHECK(info.struct_bytes == sizeof info && info.layer == 1 && info.hidden == H && info.intermediate == I);
  CHECK(info.num_experts == E && info.top_k == K && info.expert_begin == 0 && info.expert_end == E);
  CHECK(info.num_shared_experts == M && info.has_shared_weights == 1 && info.has_router == 1 && info.was_packed == 1);
  CHECK(info.swiglu_clamp == 0 && info.routed_scaling == 1 && info.weight_on_input == 0);
  CHECK(strcmp(info.model_type, "qwen2_moe") == 0 && strstr(info.notes, "packed to E4M3") != NULL);

  /* What a caller of a smaller and of a larger struct sees. */
  memset(&info, 0xff, sizeof info);
  info.struct_bytes = offsetof(megamoe_checkpoint_info, intermediate);
  CHECK(megamoe_checkpoint_describe(checkpoint, &info) == MEGAMOE_OK);
  CHECK(info.hidden == H && info.intermediate == UINT32_MAX);
  struct {
    megamoe_checkpoint_info known;
    uint32_t later[4];
  } larger;
  memset(&larger, 0xff, sizeof larger);
  larger.known.struct_bytes = sizeof larger;
  CHECK(megamoe_checkpoint_describe(checkpoint, &larger.known) == MEGAMOE_OK);
  CHECK(larger.known.struct_bytes == sizeof larger && larger.known.top_k == K && larger.later[3] == 0);

  megamoe_router_config router;
  memset(&router, 0, sizeof router);
  router.struct_bytes = sizeof router;
  CHECK(megamoe_checkpoint_router(checkpoint, &router) == MEGAMOE_OK);
  CHECK(router.scoring == MEGAMOE_SCORING_SOFTMAX && router.num_experts == E && router.top_k == K);
  CHECK(router.has_correction_bias == 0 && router.num_groups == 1 && router.renormalize == 0 && router.scaling == 1);
  return 0;
}

static int route(const megamoe_checkpoint* checkpoint) {
  megamoe_tensor tokens = matrix(x, MEGAMOE_BFLOAT16, T, H), id = matrix(ids, MEGAMOE_INT64, T, K);
  megamoe_tensor weight = matrix(weights, MEGAMOE_FLOAT32, T, K);
  megamoe_tensor shared_weight = matrix(shared_weights, MEGAMOE_FLOAT32, T, M);
  CHECK(megamoe_checkpoint_route(checkpoint, &tokens, &id, &weight, &shared_weight) == MEGAMOE_OK);
  for (int t = 0; t < T; ++t) {
    CHECK(ids[t * K] >= 0 && ids[t * K] < E && ids[t * K + 1] >= 0 && ids[t * K + 1] < E &&
          ids[t * K] != ids[t * K + 1]);
    CHECK(weights[t * K] >= weights[t * K + 1] && weights[t * K + 1] > 0 && weights[t * K] < 1);
    CHECK(shared_weights[t * M] > 0 && shared_weights[t * M] < 1 && shared_weights[t * M] == shared_weights[t * M + 2]);
  }
  int64_t first_ids[T * K];
  memcpy(first_ids, ids, sizeof ids);
  memset(ids, 0xff, sizeof ids);
  tokens = matrix(x32, MEGAMOE_FLOAT32, T, H); /* the same numbers */
  CHECK(megamoe_checkpoint_route(checkpoint, &tokens, &id, &weight, NULL) == MEGAMOE_OK);
  CHECK(memcmp(ids, first_ids, sizeof ids) == 0);

  CHECK(megamoe_checkpoint_route(checkpoint, &tokens, NULL, &weight, NULL) == MEGAMOE_INVALID_ARGUMENT);
  CHECK(strstr(megamoe_last_error(), "topk_ids must be given") != NULL);
  tokens.shape[1] = H - 1;
  CHECK(megamoe_checkpoint_route(checkpoint, &tokens, &id, &weight, NULL) == MEGAMOE_INVALID_ARGUMENT);
  CHECK(strstr(megamoe_last_error(), "hidden_states must have shape [5, 128], got [5, 127]") != NULL);
  tokens = matrix(x32, MEGAMOE_FLOAT32, -1, H);
  CHECK(megamoe_checkpoint_route(checkpoint, &tokens, &id, &weight, NULL) == MEGAMOE_INVALID_ARGUMENT);
  tokens = matrix(x32, 99, T, H);
  CHECK(megamoe_checkpoint_route(checkpoint, &tokens, &id, &weight, NULL) == MEGAMOE_INVALID_ARGUMENT);
  tokens = matrix(x32, MEGAMOE_FLOAT32, T, H);
  tokens.device = 1;
  CHECK(megamoe_checkpoint_route(checkpoint, &tokens, &id, &weight, NULL) == MEGAMOE_INVALID_ARGUMENT);
  CHECK(strstr(megamoe_last_error(), "must lie in host memory") != NULL);
  return 0;
}

/* Runs the layer with these weights; the routing is that of route(). */
static int run(const megamoe_expert_weights* w, uint16_t* output) {
  megamoe_group* group = NULL;
  CHECK(megamoe_thread_group_create(1, &group) == MEGAMOE_OK);
  megamoe_layer_config config = {sizeof config, H, I, E, K, T, 0, 1, 0, "cpu", M, 1.0f, 0, 0};
  megamoe_layer* layer = NULL;
  CHECK(megamoe_layer_create(&config, group, &layer) == MEGAMOE_OK);
  CHECK(megamoe_layer_load_weights(layer, w) == MEGAMOE_OK);
  megamoe_forward_args args;
  memset(&args, 0, sizeof args);
  args.struct_bytes = sizeof args;
  args.hidden_states = matrix(x, MEGAMOE_BFLOAT16, T, H);
  args.topk_ids = matrix(ids, MEGAMOE_INT64, T, K);
  args.topk_weights = matrix(weights, MEGAMOE_FLOAT32, T, K);
  args.shared_weights = matrix(shared_weights, MEGAMOE_FLOAT32, T, M);
  args.output = matrix(output, MEGAMOE_BFLOAT16, T, H);
  CHECK(megamoe_layer_forward(layer, &args) == MEGAMOE_OK);
  megamoe_layer_destroy(layer);
  megamoe_group_destroy(group);
  return 0;
}

static int check_ranks(const char* folder, const megamoe_expert_weights* whole) {
  for (uint32_t rank = 0; rank < 4; ++rank) {
    megamoe_checkpoint_options options = {sizeof options, 1, rank, 4, 0, 0};
    megamoe_checkpoint* part = NULL;
    CHECK(megamoe_checkpoint_load(folder, &options, &part) == MEGAMOE_OK);
    megamoe_expert_weights w = {sizeof w};
    CHECK(megamoe_checkpoint_weights(part, &w) == MEGAMOE_OK);
    CHECK(same_shape(&w.w2, MEGAMOE_FLOAT8_E4M3FN, 3, (int64_t[]){E / 4, H, I}));
    const size_t bytes = E / 4 * H * I;
    CHECK(memcmp(w.w2.data, (const char*)whole->w2.data + rank * bytes, bytes) == 0);
    CHECK(memcmp(w.w13.data, (const char*)whole->w13.data + rank * 2 * bytes, 2 * bytes) == 0);
    CHECK(memcmp(w.shared_w2.data, whole->shared_w2.data, M * H * I) == 0);
    megamoe_checkpoint_destroy(part);
  }
  return 0;
}

static int check_refusals(const char* folder, const char* four_experts) {
  megamoe_checkpoint* checkpoint = NULL;
  megamoe_checkpoint_options options = {sizeof options, 1, 0, 1, 0, 0};
  CHECK(megamoe_checkpoint_load("/nonexistent", &options, &checkpoint) == MEGAMOE_BAD_FILE);
  CHECK(strstr(megamoe_last_error(), "/nonexistent/config.json must be a readable file") != NULL);
  CHECK(megamoe_checkpoint_load(NULL, &options, &checkpoint) == MEGAMOE_INVALID_ARGUMENT);
  CHECK(megamoe_checkpoint_load(folder, NULL, &checkpoint) == MEGAMOE_INVALID_ARGUMENT);
  CHECK(megamoe_checkpoint_load(folder, &options, NULL) == MEGAMOE_INVALID_ARGUMENT);
  options.layer = 9;
  CHECK(megamoe_checkpoint_load(folder, &options, &checkpoint) == MEGAMOE_BAD_FILE);
  CHECK(strstr(megamoe_last_error(), "layer 9 must have experts") != NULL);
  options.layer = 1;
  options.num_ranks = 3;
  CHECK(megamoe_checkpoint_load(four_experts, &options, &checkpoint) == MEGAMOE_INVALID_ARGUMENT);
  CHECK(strstr(megamoe_last_error(), "got 4 experts on 3 ranks") != NULL);
  options.num_ranks = 0;
  CHECK(megamoe_checkpoint_load(folder, &options, &checkpoint) == MEGAMOE_INVALID_ARGUMENT);
  CHECK(strstr(megamoe_last_error(), "rank must be below num_ranks, got 0 of 0") != NULL);
  CHECK(checkpoint == NULL);

  options.num_ranks = 1;
  options.routed_only = 1;
  CHECK(megamoe_checkpoint_load(folder, &options, &checkpoint) == MEGAMOE_OK);
  megamoe_expert_weights w = {sizeof w};
  CHECK(megamoe_checkpoint_weights(checkpoint, &w) == MEGAMOE_OK && w.shared_w13.dtype == MEGAMOE_DTYPE_NONE);
  megamoe_router_config router = {sizeof router};
  CHECK(megamoe_checkpoint_router(checkpoint, &router) == MEGAMOE_NOT_SUPPORTED);
  CHECK(strstr(megamoe_last_error(), "load the layer whole") != NULL);
  megamoe_checkpoint_destroy(checkpoint);
  megamoe_checkpoint_destroy(NULL);
  CHECK(megamoe_checkpoint_describe(NULL, NULL) == MEGAMOE_INVALID_ARGUMENT);
  return 0;
}

/* Two groups of two experts; only the second may be chosen from. */
static int check_choice(void) {
  float logits[2 * 4] = {0, 0, 0, 0, 9, -9, 2, 3}, bias[4] = {0, 0, 1, 1}, chosen_weights[2 * 2];
  int64_t chosen[2 * 2];
  megamoe_router_config config = {sizeof config, MEGAMOE_SCORING_SIGMOID, 4, 2, 1, 2, 1, 1, 0, 3.0f, 0, 0};
  const megamoe_tensor logit = matrix(logits, MEGAMOE_FLOAT32, 2, 4), id = matrix(chosen, MEGAMOE_INT64, 2, 2);
  const megamoe_tensor weight = matrix(chosen_weights, MEGAMOE_FLOAT32, 2, 2);
  megamoe_tensor correction = matrix(bias, MEGAMOE_FLOAT32, 4, 1);
  CHECK(megamoe_choose_experts(&config, &logit, &correction, &id, &weight) == MEGAMOE_INVALID_ARGUMENT);
  CHECK(strstr(megamoe_last_error(), "correction_bias must have shape [4], got [4, 1]") != NULL);
  correction.num_dims = 1;
  CHECK(megamoe_choose_experts(&config, &logit, &correction, &id, &weight) == MEGAMOE_OK);
  CHECK(chosen[0] == 2 && chosen[1] == 3 && chosen[2] == 3 && chosen[3] == 2);
  CHECK(fabsf(chosen_weights[0] - 1.5f) < 1e-5f && fabsf(chosen_weights[2] + chosen_weights[3] - 3) < 1e-5f);
  config.scoring = 0;
  CHECK(megamoe_choose_experts(&config, &logit, &correction, &id, &weight) == MEGAMOE_INVALID_ARGUMENT);
  CHECK(strstr(megamoe_last_error(), "scoring must be 1 (softmax)") != NULL);
  return 0;
}

int main(int argc, char** argv) {
  CHECK(argc == 3);
  for (int i = 0; i < T * H; ++i) {
    x32[i] = (float)((i * 37 + i / 11) % 17 - 8) / 8.0f; /* eighths are exact in BF16 */
    uint32_t bits;
    memcpy(&bits, &x32[i], sizeof bits);
    x[i] = (uint16_t)(bits >> 16);
  }
  const megamoe_checkpoint_options options = {sizeof options, 1, 0, 1, 0, 0};
  megamoe_checkpoint* checkpoint = NULL;
  CHECK(megamoe_checkpoint_load(argv[1], &options, &checkpoint) == MEGAMOE_OK);
  if (check_info(checkpoint) != 0 || route(checkpoint) != 0) return 1;

  megamoe_expert_weights w = {sizeof w};
  CHECK(megamoe_checkpoint_weights(checkpoint, &w) == MEGAMOE_OK);
  CHECK(w.w13_layout == MEGAMOE_W13_GATE_UP && w.scale_format == MEGAMOE_SCALE_FLOAT32);
  CHECK(same_shape(&w.w13, MEGAMOE_FLOAT8_E4M3FN, 3, (int64_t[]){E, 2 * I, H}));
  CHECK(same_shape(&w.w13_scale, MEGAMOE_FLOAT32, 4, (int64_t[]){E, 2, 1, 1}));
  CHECK(same_shape(&w.w2_scale, MEGAMOE_FLOAT32, 3, (int64_t[]){E, 1, 1}));
  CHECK(same_shape(&w.shared_w13, MEGAMOE_FLOAT8_E4M3FN, 3, (int64_t[]){M, 2 * I, H}));
  if (run(&w, y) != 0 || check_ranks(argv[1], &w) != 0) return 1;
  int num_nonzero = 0;
  for (int i = 0; i < T * H; ++i) num_nonzero += (y[i] & 0x7fff) != 0 && (y[i] & 0x7f80) != 0x7f80;
  CHECK(num_nonzero > T * H * 9 / 10);

  memset(shared_weights, 0, sizeof shared_weights); /* shared experts that weigh nothing give another result */
  if (run(&w, y_again) != 0) return 1;
  CHECK(memcmp(y, y_again, sizeof y) != 0);
  megamoe_checkpoint_destroy(checkpoint);

  if (check_refusals(argv[1], argv[2]) != 0 || check_choice() != 0) return 1;
  printf("checkpoint of %s: ok\n", argv[1]);
  return 0;
}
