/* One rank, one expert, through the installed C interface: y = w * silu(g) * u with g = u = 1 in every column. */
#include <math.h>
#include <megamoe/megamoe.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include "check.h"

#define H 128
#define I 64
#define T 3

static uint8_t w13[2 * I * H], w2[H * I];
static uint16_t x[T * H], y[T * H];

static megamoe_tensor tensor(void* data, megamoe_dtype dtype, int dims, const int64_t* shape) {
  megamoe_tensor t;
  int64_t stride = 1;
  memset(&t, 0, sizeof t);
  t.data = data;
  t.dtype = dtype;
  t.num_dims = dims;
  for (int d = dims - 1; d >= 0; --d) {
    t.shape[d] = shape[d];
    t.strides[d] = stride;
    stride *= shape[d];
  }
  return t;
}

static void logged(int32_t level, const char* message, void* count) {
  (void)level;
  if (strstr(message, "backend cpu") != NULL) ++*(int*)count;
}

static float value(uint16_t bf16) {
  const uint32_t bits = (uint32_t)bf16 << 16;
  float value;
  memcpy(&value, &bits, sizeof value);
  return value;
}

/* The same expert as a shared one and behind a map, counted; then what a caller of the first version would pass. */
static int check_extras(const megamoe_expert_weights* weights, megamoe_forward_args args) {
  megamoe_group* group = NULL;
  CHECK(megamoe_thread_group_create(1, &group) == MEGAMOE_OK);
  megamoe_layer_config config = {sizeof config, H, I, 1, 1, T, 0, 1, 0, "cpu", 1, 2.0f, 2, 0};
  megamoe_layer* layer = NULL;
  CHECK(megamoe_layer_create(&config, group, &layer) == MEGAMOE_OK);
  megamoe_expert_weights w = *weights;
  CHECK(megamoe_layer_load_weights(layer, &w) == MEGAMOE_INVALID_ARGUMENT);
  CHECK(strstr(megamoe_layer_error(layer), "shared_w13 must be given") != NULL);
  w.shared_w13 = w.w13;
  w.shared_w13_scale = w.w13_scale;
  w.shared_w2 = w.w2;
  w.shared_w2_scale = w.w2_scale;
  CHECK(megamoe_layer_load_weights(layer, &w) == MEGAMOE_OK);
  int64_t ids[T] = {1, -1, 0}; /* logical: 1 is the expert, 0 has none */
  int32_t map[2] = {-1, 0}, counts[1] = {5};
  float shared_weights[T] = {0.25f, 0.5f, 1};
  const float want[T] = {2.25f, 0.5f, 1};
  args.topk_ids = tensor(ids, MEGAMOE_INT64, 2, (int64_t[]){T, 1});
  args.shared_weights = tensor(shared_weights, MEGAMOE_FLOAT32, 2, (int64_t[]){T, 1});
  args.expert_map = tensor(map, MEGAMOE_INT32, 1, (int64_t[]){2});
  args.cumulative_recv_counts = tensor(counts, MEGAMOE_INT32, 1, (int64_t[]){1});
  args.active_ranks[0] = 1;
  args.renormalize_weights = 1;
  CHECK(megamoe_layer_forward(layer, &args) == MEGAMOE_OK);
  for (int t = 0; t < T; ++t) CHECK(fabsf(value(y[t * H + H - 1]) - want[t] * 0.7310586f) <= 0.01f * want[t]);
  CHECK(counts[0] == 6);
  args.shared_weights.dtype = 99; /* no type at all is not the same as no tensor */
  CHECK(megamoe_layer_forward(layer, &args) == MEGAMOE_INVALID_ARGUMENT);
  CHECK(strstr(megamoe_layer_error(layer), "shared_weights must be float32") != NULL);
  args.struct_bytes = offsetof(megamoe_forward_args, shared_weights);
  CHECK(megamoe_layer_forward(layer, &args) == MEGAMOE_INVALID_ARGUMENT);
  CHECK(strstr(megamoe_layer_error(layer), "expert_map must be given") != NULL);
  megamoe_layer_destroy(layer);
  megamoe_group_destroy(group);
  return 0;
}

int main(void) {
  const uint8_t one = 0x38; /* 1.0 in E4M3 */
  float scale13[2] = {1, 1}, scale2[1] = {1};
  int64_t ids[T] = {0, -1, 0};
  float weights[T] = {1, NAN, 0.5f};
  int num_messages = 0;
  for (int row = 0; row < 2 * I; ++row) w13[row * H] = one; /* reads x[0] */
  for (int row = 0; row < H; ++row) w2[row * I] = one;      /* writes h[0] everywhere */
  for (int t = 0; t < T; ++t) x[t * H] = 0x3f80;            /* 1.0 in BF16 */

  megamoe_set_log_callback(logged, &num_messages);
  megamoe_group* group = NULL;
  CHECK(megamoe_thread_group_create(1, &group) == MEGAMOE_OK);
  megamoe_layer_config config = {sizeof config, H, I, 1, 1, T, 0, 1, 0, "cpu"};
  uint64_t bytes = 0;
  CHECK(megamoe_workspace_bytes(&config, 1, &bytes) == MEGAMOE_OK && bytes > 0);
  megamoe_layer* layer = NULL;
  CHECK(megamoe_layer_create(&config, group, &layer) == MEGAMOE_OK);

  megamoe_expert_weights w = {sizeof w, MEGAMOE_W13_GATE_UP, MEGAMOE_SCALE_FLOAT32, 0, {0}, {0}, {0}, {0}};
  w.w13 = tensor(w13, MEGAMOE_FLOAT8_E4M3FN, 3, (int64_t[]){1, 2 * I, H});
  w.w13_scale = tensor(scale13, MEGAMOE_FLOAT32, 4, (int64_t[]){1, 2, 1, 1});
  w.w2 = tensor(w2, MEGAMOE_FLOAT8_E4M3FN, 3, (int64_t[]){1, H, I});
  w.w2_scale = tensor(scale2, MEGAMOE_FLOAT32, 3, (int64_t[]){1, 1, 1});
  CHECK(megamoe_layer_load_weights(layer, &w) == MEGAMOE_OK);

  megamoe_forward_args args;
  memset(&args, 0, sizeof args);
  args.struct_bytes = sizeof args;
  args.hidden_states = tensor(x, MEGAMOE_BFLOAT16, 2, (int64_t[]){T, H});
  args.topk_ids = tensor(ids, MEGAMOE_INT64, 2, (int64_t[]){T, 1});
  args.topk_weights = tensor(weights, MEGAMOE_FLOAT32, 2, (int64_t[]){T, 1});
  args.output = tensor(y, MEGAMOE_BFLOAT16, 2, (int64_t[]){T, H});
  CHECK(megamoe_layer_forward(layer, &args) == MEGAMOE_OK);
  for (int t = 0; t < T; ++t) {
    const float got = value(y[t * H + H - 1]);
    const float want = ids[t] < 0 ? 0.0f : weights[t] * 0.7310586f; /* silu(1) * 1 */
    CHECK(fabsf(got - want) <= 0.01f * want);
  }

  megamoe_tensor codes, scales;
  CHECK(megamoe_layer_input_views(layer, &codes, &scales) == MEGAMOE_OK);
  CHECK(codes.dtype == MEGAMOE_FLOAT8_E4M3FN && codes.shape[0] == T && codes.shape[1] == H && scales.shape[1] == 1);
  memset(codes.data, 0, T * H);
  for (int t = 0; t < T; ++t) {
    ((uint8_t*)codes.data)[t * H] = one;
    ((float*)scales.data)[t] = 2; /* the tokens of above, doubled */
  }
  args.hidden_states = codes;
  args.hidden_states_scale = scales;
  args.scale_format = MEGAMOE_SCALE_FLOAT32;
  CHECK(megamoe_layer_forward(layer, &args) == MEGAMOE_OK);
  const uint32_t doubled = (uint32_t)y[0] << 16;
  float value;
  memcpy(&value, &doubled, sizeof value);
  CHECK(fabsf(value - 4 * 0.8807971f) <= 0.01f * 4); /* 2 * silu(2) */
  args.hidden_states = tensor(x, MEGAMOE_BFLOAT16, 2, (int64_t[]){T, H});
  args.hidden_states_scale.dtype = MEGAMOE_DTYPE_NONE;
  args.scale_format = 0;

  args.is_asynchronous = 1; /* there is no GPU here */
  CHECK(megamoe_layer_forward(layer, &args) == MEGAMOE_NOT_SUPPORTED);
  CHECK(strstr(megamoe_layer_error(layer), "cuda_stream needs backend cuda") != NULL);
  args.is_asynchronous = 0;
  args.cuda_stream = &args;
  CHECK(megamoe_layer_forward(layer, &args) == MEGAMOE_INVALID_ARGUMENT);
  args.cuda_stream = NULL;
  args.is_asynchronous = 2;
  CHECK(megamoe_layer_forward(layer, &args) == MEGAMOE_INVALID_ARGUMENT);
  args.is_asynchronous = 0;
  CHECK(megamoe_layer_finish(layer) == MEGAMOE_OK);

  ids[0] = 7; /* no such expert: a sentence, and the layer goes on working */
  CHECK(megamoe_layer_forward(layer, &args) == MEGAMOE_INVALID_ARGUMENT);
  CHECK(strstr(megamoe_layer_error(layer), "got 7 at rank 0, token 0") != NULL);
  ids[0] = 0;
  CHECK(megamoe_layer_forward(layer, &args) == MEGAMOE_OK);

  if (check_extras(&w, args) != 0) return 1;

  config.hidden = 100;
  CHECK(megamoe_workspace_bytes(&config, 1, &bytes) == MEGAMOE_INVALID_ARGUMENT);
  CHECK(megamoe_layer_forward(NULL, &args) == MEGAMOE_INVALID_ARGUMENT);
  args.struct_bytes = 3;
  CHECK(megamoe_layer_forward(layer, &args) == MEGAMOE_INVALID_ARGUMENT);

  megamoe_layer_destroy(layer);
  megamoe_group_destroy(group);

  /* On GPUs where there are any; else the reason. */
  const int32_t gpus[1] = {0};
  CHECK(megamoe_cuda_thread_group_create(1, NULL, &group) == MEGAMOE_INVALID_ARGUMENT);
  CHECK(megamoe_cuda_thread_group_create(0, gpus, &group) == MEGAMOE_INVALID_ARGUMENT);
  const megamoe_code made = megamoe_cuda_thread_group_create(1, gpus, &group);
  CHECK(made == MEGAMOE_OK || (made == MEGAMOE_NOT_SUPPORTED && strstr(megamoe_last_error(), "memory on a GPU needs")));
  if (made == MEGAMOE_OK) megamoe_group_destroy(group);
  CHECK(megamoe_cuda_process_group_join(NULL, 0, &group) == MEGAMOE_INVALID_ARGUMENT);
  megamoe_set_log_callback(NULL, NULL);
  CHECK(num_messages == 2); /* one a layer */
  printf("consumer of megamoe %s: ok\n", megamoe_version());
  return 0;
}
