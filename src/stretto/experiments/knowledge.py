"""What each policy of a comparison is told, beside what its paper or the comparing paper tells it.

The page of results prints it below every table, after the views that the runs themselves report. *In its
favour* is what helps a policy beyond its paper, *against it* what it lacks.
"""

from collections.abc import Mapping

KNOWLEDGE: Mapping[str, Mapping[str, str]] = {  # by paper and policy
    "cornucopia": {
        "cornucopia": "As section 7 has it: speeds are known at once. Thresholds are learned from ended jobs",
        "tiresias": "Nothing of jobs, as in table 2. Its bounds are the best of seven sets on another draw",
        "elasticflow": (
            "More than table 2 gives it: the work that is left. Its own paper has owners say that, so "
            "it stays. Figure 6 has a variant without"
        ),
        "synergy": "Its mechanism is inert: no trace says which cores or memory jobs need",
        "chronus": (
            "More than table 2 gives it: exact durations, once a job was profiled on 16 GPUs. Its own "
            "paper plans by them, so it stays"
        ),
        "srtf": "True durations, as section 5.1 assumes",
    },
    "lyra": {
        "lyra": "Running times are predicted without error, except in table 9, which is about errors",
        "lyra-tuned": "As lyra, and goodput by the catalogue's models",
        "fifo": "Nothing of jobs, as the paper's baseline",
        "gandiva": "Nothing of jobs. It only grows and shrinks jobs, as section 7.1 says",
        "afs": "True speeds, as its paper has it, and no durations. Bases are given by submission",
        "pollux": (
            "Goodput that it fits itself. It searches less than the paper lets it, and runs on an "
            "eighth of the large cluster: both against it"
        ),
    },
    "ones": {
        "ones": "What jobs report of progress, loss and speed, as its paper has it",
        "tiresias": "Nothing but the service that jobs have had, as its paper has it",
        "optimus": "It predicts losses and speeds, as section 4.1 has it",
        "drl": ("Progress and true speeds. Its network is ours, small, and trained for minutes: against it"),
    },
    "one": {  # one-for-all: all of them in one world, with the same errors
        "stretto": "The work that is left, with an error of 10 %, and deadlines. Goodput that it fits itself",
        "sia": "Goodput that it fits itself, and nothing of deadlines or of people who wait, as in its paper",
        "unisched": "Durations with an error of 10 % and deadlines. Its paper has jobs of fixed batches",
        "lyra": "Durations with an error of 10 %. Its paper has elastic jobs whose speed grows in proportion",
        "cornucopia": "Who waits for a job, and true speeds. Thresholds are learned from ended jobs",
        "pollux": "Goodput that it fits itself, and nothing of deadlines or of people who wait",
        "fifo": "Nothing of jobs but what they ask for",
    },
    "ground": {  # stretto on the grounds of others; these are told what their own tables say
        "stretto": (
            "The work that is left, with the error that the paper's policy has of durations, and deadlines. "
            "Goodput that it fits itself, or true speeds where the paper's tables have those"
        ),
        "sia": "As in the tables of Sia",
        "unisched": "As in the tables of UniSched",
        "hydra": "As in the tables of UniSched",
        "lyra": "As in the tables of Lyra",
        "ones": "As in the tables of ONES",
        "cornucopia": "As in the tables of Cornucopia",
        "chronus": "As in the tables of Cornucopia",
    },
    "sia": {
        "sia": (
            "Profiles on one GPU of each type are free, where the paper counts 0.1 GPU-hours a job. "
            "What it observes has no noise: in its favour, as in the published simulator"
        ),
        "pollux": (
            "Goodput that it fits itself. What it observes has no noise: in its favour, as in the "
            "published simulator"
        ),
        "gavel": "True speeds of what jobs ask for, on every type, as in the published simulator",
        "shockwave": (
            "True durations and speeds. Its paper predicts changes of batches, which no job here makes"
        ),
        "themis": "True work that is left and true speeds, as for Gavel's program of its objective",
    },
    "unisched": {
        "unisched": (
            "Durations with the error of figure 7, once a job was profiled. Of goals, what curves "
            "foretell; before they do, the end with that error"
        ),
        "hydra": (
            "Durations with the same error at arrival, also of jobs with goals: in its favour, since "
            "the paper does not say what it knew"
        ),
        "3sigma": "As hydra, and by what earlier estimates were off",
        "genie": (
            "As hydra, and true speeds. It chooses sizes, so it may run a job on 1 to twice the GPUs "
            "asked for: in its favour"
        ),
        "chronus": (
            "Durations with the same error, once a job was profiled on 16 GPUs, on the testbed on 8. Of "
            "goals, the owner's maximum"
        ),
        "optimus": (
            "Steps left with the same error at arrival, and true speeds, where its paper fits them to what "
            "it sees. It may run a job on 1 to twice the GPUs asked for. Both in its favour"
        ),
        "themis": (
            "Steps left with the same error at arrival, also of jobs with goals, for which the "
            "paper's had curves. True speeds, as in Gavel's program. Both in its favour"
        ),
    },
}


def knowledge_of(experiment: str, policy: str) -> str:
    """What is to be said of a policy's knowledge in the table of this name; "" where nothing is."""
    return KNOWLEDGE.get(experiment.partition("-")[0], {}).get(policy, "")
