/* The stable C interface of megamoe: an expert-parallel MoE layer on one rank of a group.
 *
 * ABI: symbols and structs of one major version stay compatible. Structs that the caller fills begin with
 * `struct_bytes` (set it to sizeof the struct); a library that knows more fields takes the missing ones as 0, one that
 * knows fewer refuses fields that it would have to ignore. No C++ type and no exception crosses this border.
 *
 * Threads: a handle may be used by one thread at a time; different handles by different threads at the same time.
 * Functions marked collective must be called by every rank of the group, each on its own thread or process.
 *
 * The library never prints and never ends the process.
 */
/* This header is C. NOLINTBEGIN(modernize-*,readability-identifier-naming) */
#ifndef MEGAMOE_MEGAMOE_H_
#define MEGAMOE_MEGAMOE_H_

#include <stdint.h>

#if defined(__GNUC__)
#define MEGAMOE_API __attribute__((visibility("default")))
#else
#define MEGAMOE_API
#endif

#ifdef __cplusplus
extern "C" {
#endif

typedef int32_t megamoe_code;
enum {
  MEGAMOE_OK = 0,
  MEGAMOE_INVALID_ARGUMENT = 1, /* a value, shape, dtype or layout is wrong; nothing was started */
  MEGAMOE_NOT_SUPPORTED = 2,    /* well formed, but this build or backend cannot do it */
  MEGAMOE_BAD_FILE = 3,         /* a file is missing, truncated, malformed or contradicts another */
  MEGAMOE_OUT_OF_MEMORY = 4,
  MEGAMOE_TIMEOUT = 5,     /* the error text names rank, role, signal and the missing ranks */
  MEGAMOE_PEER_FAILED = 6, /* another rank refused the call, failed or died */
  MEGAMOE_POISONED = 7,    /* an earlier call was cut short: megamoe_layer_reset() on every rank */
  MEGAMOE_INTERNAL = 8
};

typedef int32_t megamoe_dtype;
enum {
  MEGAMOE_DTYPE_NONE = 0, /* an absent tensor */
  MEGAMOE_FLOAT32 = 1,
  MEGAMOE_BFLOAT16 = 2,
  MEGAMOE_FLOAT8_E4M3FN = 3,
  MEGAMOE_FLOAT8_E8M0 = 4, /* a power of two as one exponent byte */
  MEGAMOE_INT32 = 5,
  MEGAMOE_INT64 = 6,
  MEGAMOE_UINT8 = 7
};

typedef int32_t megamoe_w13_layout;
enum {
  MEGAMOE_W13_GATE_UP = 1,       /* I gate rows, then I up rows */
  MEGAMOE_W13_UP_GATE = 2,       /* I up rows, then I gate rows */
  MEGAMOE_W13_INTERLEAVED_1 = 3, /* gate, up, gate, up, ... */
  MEGAMOE_W13_INTERLEAVED_8 = 4  /* 8 gate rows, 8 up rows, ... */
};

typedef int32_t megamoe_scale_format;
enum {
  MEGAMOE_SCALE_FLOAT32 = 1, /* value = code * scale */
  MEGAMOE_SCALE_UE8M0 = 2    /* powers of two */
};

typedef int32_t megamoe_scoring;
enum {
  MEGAMOE_SCORING_SOFTMAX = 1,     /* over all experts, before any is chosen */
  MEGAMOE_SCORING_SIGMOID = 2,     /* of each logit alone */
  MEGAMOE_SCORING_SQRTSOFTPLUS = 3 /* sqrt(log(1 + exp(logit))) */
};

/* Caller-owned memory; never copied as a whole, never freed by the library. */
typedef struct megamoe_tensor {
  void* data; /* may be null where the tensor has no elements */
  megamoe_dtype dtype;
  int32_t num_dims;   /* 0 to 5 */
  int64_t shape[5];   /* outermost first */
  int64_t strides[5]; /* in elements */
  int32_t device;     /* 0: host memory, 1: CUDA */
  int32_t device_index;
} megamoe_tensor;

typedef struct megamoe_layer_config {
  uint32_t struct_bytes;
  uint32_t hidden;              /* H, a multiple of 128 */
  uint32_t intermediate;        /* I, a multiple of 64 */
  uint32_t num_experts;         /* E over all ranks, 1 to 1,024, divisible by the number of ranks */
  uint32_t top_k;               /* K, 1 to 32, at most E */
  uint32_t max_tokens_per_rank; /* capacity of one call on each rank */
  float swiglu_clamp;           /* gate <= c and |up| <= c before SwiGLU, c > 0; 0: none */
  uint32_t num_threads;         /* CPU workers of this rank; 0 chooses */
  uint64_t timeout_ns;          /* of every wait for another rank; 0: 300 s */
  const char* backend;          /* "auto", "cpu", "cuda"; null: "auto" */
  uint32_t num_shared_experts;  /* m of size I, the same on every rank; E + m * ranks <= 1,024, K + m <= 32 */
  float routed_scaling;         /* multiplies topk_weights; 0: 1 */
  uint32_t num_logical_experts; /* not 0: topk_ids are logical, see expert_map */
  uint32_t num_reserved_sms;    /* SMs of a GPU that its ranks leave to other kernels */
} megamoe_layer_config;

/* The weights of this rank's experts, n = E / ranks. Borrowed while the layer uses them. */
typedef struct megamoe_expert_weights {
  uint32_t struct_bytes;
  megamoe_w13_layout w13_layout;
  megamoe_scale_format scale_format;
  uint32_t reserved;        /* 0 */
  megamoe_tensor w13;       /* [n, 2I, H] float8_e4m3fn */
  megamoe_tensor w13_scale; /* [n, 2, ceil(I/128), H/128], or [n, 2I/128, H/128] where I is a multiple of 128 */
  megamoe_tensor w2;        /* [n, H, I] float8_e4m3fn */
  megamoe_tensor w2_scale;  /* [n, H/128, ceil(I/128)] */
  /* The shared experts, m instead of n; absent where m is 0. */
  megamoe_tensor shared_w13;
  megamoe_tensor shared_w13_scale;
  megamoe_tensor shared_w2;
  megamoe_tensor shared_w2_scale;
} megamoe_expert_weights;

typedef struct megamoe_forward_args {
  uint32_t struct_bytes;
  megamoe_scale_format scale_format;  /* of hidden_states_scale; 0 where that is absent */
  uint64_t timeout_ns;                /* 0: the layer's */
  megamoe_tensor hidden_states;       /* [T, H] bfloat16, or float8_e4m3fn with scales */
  megamoe_tensor hidden_states_scale; /* [T, H/128]; absent for bfloat16 */
  megamoe_tensor topk_ids;            /* [T, K] int32 or int64; -1 masks a slot */
  megamoe_tensor topk_weights;        /* [T, K] float32 */
  megamoe_tensor output;              /* [T, H] bfloat16 */
  megamoe_tensor shared_weights;      /* [T, m] float32; absent: 1 */
  megamoe_tensor expert_map;          /* [logical experts] or [logical experts, copies] int32: physical expert or -1 */
  megamoe_tensor cumulative_recv_counts; /* [n] int32 or int64, added to once per call; absent: none */
  uint64_t active_ranks[2];              /* bit r % 64 of word r / 64; all 0: every rank. After absence: reset */
  uint32_t renormalize_weights;          /* 1: weights make up for slots that map or absent ranks mask */
  uint32_t is_asynchronous;              /* 1: only enqueue on `cuda_stream` and return; see megamoe_layer_finish */
  void* cuda_stream;                     /* a cudaStream_t, null: the default stream; null where is_asynchronous is 0 */
  float swiglu_clamp;                    /* in place of the layer's, equal on all ranks; 0: the layer's, +inf: none */
  uint32_t reserved;                     /* 0 */
} megamoe_forward_args;

/* Which process of which group this is. Zero `num_ranks`: read RANK, WORLD_SIZE, ... as a launcher sets them. */
typedef struct megamoe_process_options {
  uint32_t struct_bytes;
  uint32_t rank;
  uint32_t num_ranks;
  uint32_t reserved;          /* 0 */
  uint64_t timeout_ns;        /* for all ranks to come; 0: 300 s */
  const char* name;           /* names the group among this user's on this host */
  const char* rendezvous_dir; /* a private folder; null chooses */
} megamoe_process_options;

/* Which part of a checkpoint folder a rank loads: experts [rank * n, (rank + 1) * n) of one layer, n = E / ranks. */
typedef struct megamoe_checkpoint_options {
  uint32_t struct_bytes;
  uint32_t layer;
  uint32_t rank;
  uint32_t num_ranks;   /* at least 1, divides E */
  uint32_t routed_only; /* 1: neither router nor shared experts, which then need not be there */
  uint32_t reserved;    /* 0 */
} megamoe_checkpoint_options;

/* What was loaded. The texts live as long as the checkpoint. */
typedef struct megamoe_checkpoint_info {
  uint32_t struct_bytes;
  uint32_t layer;
  uint32_t hidden;
  uint32_t intermediate;
  uint32_t num_experts; /* of the layer, over all ranks */
  uint32_t top_k;
  uint32_t expert_begin; /* the experts that are here: [expert_begin, expert_end) */
  uint32_t expert_end;
  uint32_t num_shared_experts; /* m of size I: larger shared experts come in pieces whose sum is the whole */
  uint32_t has_shared_weights; /* 1: a gate weighs the shared experts, see megamoe_checkpoint_route; 0: they weigh 1 */
  uint32_t has_router;         /* 0: routing comes from elsewhere; megamoe_checkpoint_router says why */
  uint32_t was_packed;         /* 1: weights were rounded to E4M3 on loading; 0: taken as they are */
  float swiglu_clamp;          /* 0: none */
  float routed_scaling;        /* of the router: inside the weights that it gives; a layer must not apply it again */
  uint32_t weight_on_input;    /* 1: the router's weight multiplies the routed experts' input (Llama-4), which is the
                                  caller's to do: weigh the tokens, pass topk_weights of 1 */
  uint32_t reserved;           /* 0 */
  const char* model_type;      /* of config.json; "" where it has none */
  const char* notes;           /* what was found and done, one sentence a line */
} megamoe_checkpoint_info;

/* From router logits to experts: the top_k with the highest score, plus correction bias where there is one, inside the
 * chosen groups; their weights come from the scores without the bias. Ties go to the lowest index. */
typedef struct megamoe_router_config {
  uint32_t struct_bytes;
  megamoe_scoring scoring;
  uint32_t num_experts;
  uint32_t top_k;
  uint32_t has_correction_bias; /* 1: added to the scores for the choice alone */
  uint32_t num_groups;          /* equal runs of experts, ranked by the sum of their best two; 0: 1 */
  uint32_t topk_groups;         /* groups from which experts may be chosen; 0: 1 */
  uint32_t renormalize;         /* 1: weights of a token are divided by their sum + renormalize_epsilon */
  float renormalize_epsilon;
  float scaling;            /* multiplies the weights, last; 0: 1 */
  uint32_t weight_on_input; /* 1: the weight multiplies the routed experts' input instead of their output (Llama-4) */
  uint32_t reserved;        /* 0 */
} megamoe_router_config;

typedef struct megamoe_group megamoe_group;           /* one rank's membership in a group */
typedef struct megamoe_layer megamoe_layer;           /* one rank's layer */
typedef struct megamoe_weights megamoe_weights;       /* weights made ready for one layer */
typedef struct megamoe_checkpoint megamoe_checkpoint; /* one rank's part of one layer of a checkpoint, in host memory */

/* "0.1.0" */
MEGAMOE_API const char* megamoe_version(void);
/* "invalid_argument", ...; "unknown" for other numbers. */
MEGAMOE_API const char* megamoe_code_name(megamoe_code code);
/* Why the last failed call on this thread failed: a sentence, "" before the first failure. Valid until the next failure
 * here. */
MEGAMOE_API const char* megamoe_last_error(void);

/* levels: 0 information, 1 warning. Called from any thread; must not call back. Null ends the calls. */
typedef void (*megamoe_log_callback)(int32_t level, const char* message, void* user_data);
MEGAMOE_API void megamoe_set_log_callback(megamoe_log_callback callback, void* user_data);

/* Ranks as threads of this process: fills groups[0 .. num_ranks). */
MEGAMOE_API megamoe_code megamoe_thread_group_create(uint32_t num_ranks, megamoe_group** groups);
/* The same with memory on GPUs: rank r's on GPU device_indices[r], as the CUDA runtime counts them; ranks may share a
 * GPU. Tensors of a rank lie on its GPU. */
MEGAMOE_API megamoe_code megamoe_cuda_thread_group_create(uint32_t num_ranks, const int32_t* device_indices,
                                                          megamoe_group** groups);
/* Collective. Ranks as processes of one host. */
MEGAMOE_API megamoe_code megamoe_process_group_join(const megamoe_process_options* options, megamoe_group** group);
/* Collective. The same with memory on GPUs: this rank's on GPU device_index. */
MEGAMOE_API megamoe_code megamoe_cuda_process_group_join(const megamoe_process_options* options, int32_t device_index,
                                                         megamoe_group** group);
MEGAMOE_API uint32_t megamoe_group_rank(const megamoe_group* group);
MEGAMOE_API uint32_t megamoe_group_num_ranks(const megamoe_group* group);
/* The membership ends when its layers are destroyed too. Null is ignored. */
MEGAMOE_API void megamoe_group_destroy(megamoe_group* group);

/* Bytes of symmetric memory that megamoe_layer_create would take per rank. Needs no group. */
MEGAMOE_API megamoe_code megamoe_workspace_bytes(const megamoe_layer_config* config, uint32_t num_ranks,
                                                 uint64_t* bytes);
/* Collective. */
MEGAMOE_API megamoe_code megamoe_layer_create(const megamoe_layer_config* config, megamoe_group* group,
                                              megamoe_layer** layer);
MEGAMOE_API megamoe_code megamoe_layer_load_weights(megamoe_layer* layer, const megamoe_expert_weights* weights);
/* As megamoe_layer_load_weights, for megamoe_layer_use_weights: one layer then serves all layers of a model, with one
 * workspace. The result serves this layer only; it must not be destroyed before the calls and graphs that use it. */
MEGAMOE_API megamoe_code megamoe_layer_prepare_weights(megamoe_layer* layer, const megamoe_expert_weights* weights,
                                                       megamoe_weights** prepared);
/* Later calls of this rank use these weights. Waits for nothing: it may come between calls that are captured. */
MEGAMOE_API megamoe_code megamoe_layer_use_weights(megamoe_layer* layer, const megamoe_weights* prepared);
/* Null is ignored. */
MEGAMOE_API void megamoe_weights_destroy(megamoe_weights* prepared);
/* Collective. */
MEGAMOE_API megamoe_code megamoe_layer_forward(megamoe_layer* layer, const megamoe_forward_args* args);
/* Waits for the last asynchronous call and returns the first failure of such calls that no call has returned yet.
 * Replays of a captured graph must have been waited for by the caller. */
MEGAMOE_API megamoe_code megamoe_layer_finish(megamoe_layer* layer);
/* Where E4M3 tokens may be written so that a call on them copies nothing: codes [max_tokens_per_rank, H] float8_e4m3fn,
 * scales [max_tokens_per_rank, H/128] float32. Pass dense views of their first T rows to megamoe_layer_forward. */
MEGAMOE_API megamoe_code megamoe_layer_input_views(megamoe_layer* layer, megamoe_tensor* codes, megamoe_tensor* scales);
/* Collective. Makes a poisoned layer usable again. */
MEGAMOE_API megamoe_code megamoe_layer_reset(megamoe_layer* layer);
/* Why the last failed call on this layer failed; "" before the first failure. Valid until the next failure or
 * destruction. */
MEGAMOE_API const char* megamoe_layer_error(const megamoe_layer* layer);
/* Collective. Null is ignored. */
MEGAMOE_API void megamoe_layer_destroy(megamoe_layer* layer);

/* Loads a rank's part of one layer of a checkpoint folder (config.json and safetensors). BF16 and MXFP4 experts become
 * E4M3. Not collective. MEGAMOE_BAD_FILE: anything missing, short, unknown or contradictory, by name, before weights
 * are read; MEGAMOE_NOT_SUPPORTED: a naming, type or quantisation that is recognised but not loaded. */
MEGAMOE_API megamoe_code megamoe_checkpoint_load(const char* folder, const megamoe_checkpoint_options* options,
                                                 megamoe_checkpoint** checkpoint);
/* Fills `info`, whose struct_bytes the caller sets. */
MEGAMOE_API megamoe_code megamoe_checkpoint_describe(const megamoe_checkpoint* checkpoint,
                                                     megamoe_checkpoint_info* info);
/* Fills `weights`, whose struct_bytes the caller sets, with views of memory that the checkpoint owns: for
 * megamoe_layer_load_weights of a layer in host memory, or to be copied to a GPU. */
MEGAMOE_API megamoe_code megamoe_checkpoint_weights(const megamoe_checkpoint* checkpoint,
                                                    megamoe_expert_weights* weights);
/* Fills `config`, whose struct_bytes the caller sets. MEGAMOE_NOT_SUPPORTED: there is none, with the reason. */
MEGAMOE_API megamoe_code megamoe_checkpoint_router(const megamoe_checkpoint* checkpoint, megamoe_router_config* config);
/* Runs the router on T tokens in dense host memory. hidden_states [T, H] bfloat16 or float32; topk_ids [T, K] int64 and
 * topk_weights [T, K] float32 are written; so is shared_weights [T, m] float32, which may be null. */
MEGAMOE_API megamoe_code megamoe_checkpoint_route(const megamoe_checkpoint* checkpoint,
                                                  const megamoe_tensor* hidden_states, const megamoe_tensor* topk_ids,
                                                  const megamoe_tensor* topk_weights,
                                                  const megamoe_tensor* shared_weights);
/* Null is ignored. The views of its weights end with it. */
MEGAMOE_API void megamoe_checkpoint_destroy(megamoe_checkpoint* checkpoint);

/* Chooses for T tokens in dense host memory. logits [T, E] float32; correction_bias [E] float32 or null; topk_ids [T,
 * K] int64 and topk_weights [T, K] float32 are written. Ids are distinct and in range whatever the logits are. */
MEGAMOE_API megamoe_code megamoe_choose_experts(const megamoe_router_config* config, const megamoe_tensor* logits,
                                                const megamoe_tensor* correction_bias, const megamoe_tensor* topk_ids,
                                                const megamoe_tensor* topk_weights);

#ifdef __cplusplus
} /* extern "C" */
#endif

#endif /* MEGAMOE_MEGAMOE_H_ */
/* NOLINTEND(modernize-*,readability-identifier-naming) */
