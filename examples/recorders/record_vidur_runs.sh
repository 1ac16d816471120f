#!/usr/bin/env bash
# Record eight runs of Vidur, one for each of its schedulers and more, for `gnomon verify vidur runs/*`.
# Run it in a clone of microsoft/vidur, where Vidur is installed; this folder lies beside its data.
set -euo pipefail
recorder=$(cd "$(dirname "$0")" && pwd)/record_vidur.py

record() { # NAME SCHEDULER QPS LENGTHS FLAGS...
    local name=$1 scheduler=$2 qps=$3 lengths=$4
    shift 4
    RECORD=runs/$name python "$recorder" \
        --replica_config_device a100 --replica_scheduler_config_type "$scheduler" \
        --request_generator_config_type synthetic --synthetic_request_generator_config_num_requests 256 \
        --interval_generator_config_type poisson --poisson_request_interval_generator_config_qps "$qps" \
        --length_generator_config_type "$lengths" "$@"
}

small=(--replica_config_model_name meta-llama/Llama-2-7b-hf)
short=(--uniform_request_length_generator_config_max_tokens 1024 --uniform_request_length_generator_config_min_tokens 128)

record l2_7b_faster_transformer faster_transformer 1 uniform "${small[@]}" "${short[@]}"
record l2_7b_orca orca 2 uniform "${small[@]}" "${short[@]}"
record l2_7b_lightllm lightllm 2 uniform "${small[@]}" "${short[@]}"
record l2_7b_vllm_preempt vllm 8 fixed "${small[@]}" --vllm_scheduler_config_num_blocks 4000
record l2_7b_sarathi_preempt sarathi 8 fixed "${small[@]}" --sarathi_scheduler_config_num_blocks 4000
record l3_8b_sarathi sarathi 6.45 uniform --replica_config_model_name meta-llama/Meta-Llama-3-8B \
    --sarathi_scheduler_config_batch_size_cap 512 --sarathi_scheduler_config_chunk_size 512
record cl34b_tp2_four_replicas sarathi 12 uniform --replica_config_model_name codellama/CodeLlama-34b-Instruct-hf \
    --replica_config_tensor_parallel_size 2 --cluster_config_num_replicas 4
record l2_70b_tp2_pp2 sarathi 1 uniform --replica_config_model_name meta-llama/Llama-2-70b-hf \
    --replica_config_tensor_parallel_size 2 --replica_config_num_pipeline_stages 2
