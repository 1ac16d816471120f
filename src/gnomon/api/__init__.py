"""One function and one result for every question; the command line, the page and notebooks ask nothing else.

gnomon.simulate, gnomon.compare      serving        gnomon.pipeline     a training step
gnomon.search, gnomon.bench          planning       gnomon.posttrain    RL post-training
gnomon.time                          one iteration  gnomon.route        routers on held-out traces
gnomon.verify                        proofs         gnomon.explain      why it is as it is

Every function takes a configuration (a file, a mapping, the configuration itself, or nothing for the defaults) with
overrides by dotted name, and gives a `Result`.
"""
