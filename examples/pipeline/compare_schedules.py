"""Which schedule trains Llama-3-70B fastest on 8 ranks of 8 H100, and where does each lose its time?"""

from __future__ import annotations

from gnomon.pipeline import Plan, Training, TrainingCosts, execute, idle_time, make, training_figures
from gnomon.pipeline.explain import total
from gnomon.pipeline.step import training_plan


def main() -> None:
    training = Training(model="llama-3-70b", device="h100", tensor_parallel=8, data_parallel=2, sequence=4096)
    plan = training_plan(training, Plan(ranks=8, microbatches=32))
    print("schedule      tokens/s    MFU  memory   idle: wait  transfers  contention")
    for name in ("gpipe", "1f1b", "interleaved", "zb-h1", "zb-v", "v-half", "dualpipe"):
        schedule = make(name, plan)
        costs = TrainingCosts(training, schedule.num_stages)
        run = execute(schedule, costs.step_costs(schedule))
        figures = training_figures(costs, schedule, run)
        idle = total(idle_time(run))
        waits = idle.warm_up + idle.dependency + idle.cool_down
        shares = [
            100 * part / (run.total_time * run.num_ranks) for part in (waits, idle.communication, idle.contention)
        ]
        memory = figures.peak_bytes.max() / 1e9
        print(f"{name:<12}{figures.tokens_per_s:>10,.0f} {figures.mfu:>6.1%} {memory:>5.0f} GB", end="")
        print("".join(f"{share:>11.1f}%" for share in shares))


if __name__ == "__main__":
    main()
