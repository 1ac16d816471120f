"""Pipeline-parallel training: schedules as data, execution with contention.

```python
from gnomon.pipeline import Plan, StepCosts, Study, execute, idle_time, make, simulate

simulate(Study(grad_prop="a")).total_time                                # the communication-priority study
run = execute(make("zb-v", Plan(ranks=8, microbatches=32)), StepCosts(send=0.1))  # any schedule
idle_time(run)                                                            # where the time goes
```
"""

from gnomon.pipeline.costs import StepCosts
from gnomon.pipeline.execution import execute, monte_carlo
from gnomon.pipeline.explain import critical_path, faster_links, idle_time
from gnomon.pipeline.memory import activations
from gnomon.pipeline.run import Run
from gnomon.pipeline.schedule import Action, Schedule
from gnomon.pipeline.step import load_schedule
from gnomon.pipeline.study import Study, simulate
from gnomon.pipeline.sweeps import SweepConfig, sweep
from gnomon.pipeline.validation import validate
from gnomon.pipeline.zoo import SCHEDULES, Plan, make
