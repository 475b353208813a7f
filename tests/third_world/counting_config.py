from configs import base


def get_config(names=""):
    return base.experiment(__file__, names, {"small": small})


def small():
    config = base.small()
    config.benchmark, config.judge = "counting", "risen"
    config.rollout.context_length = config.warmstart.context_length = 256
    config.rollout.max_new_tokens = 128
    config.train.row_lengths = (256,)
    config.train.tasks, config.train.trees = 2, 3
    config.eval.tasks, config.eval.sets = 2, ("held out",)
    config.warmstart.tasks, config.warmstart.vocabulary = 16, 400
    return config
