"""The published tables that can be made again, by name."""

from collections.abc import Callable, Mapping
from typing import Any

from stretto.errors import InputError
from stretto.experiments.cornucopia import causes as cornucopia_causes
from stretto.experiments.cornucopia import comparison, parts
from stretto.experiments.lyra import lending, scaling, tables, testbed
from stretto.experiments.one_for_all import mixed, mixed_causes, specialists
from stretto.experiments.one_for_all.grounds import Ground
from stretto.experiments.ones import batches, progress, speeds, switches
from stretto.experiments.ones import causes as ones_causes
from stretto.experiments.ones import comparison as ones
from stretto.experiments.reproduction import Experiment, Made, Request
from stretto.experiments.sia import causes as sia_causes
from stretto.experiments.sia import comparison as sia
from stretto.experiments.sia import figures, settings
from stretto.experiments.unisched import causes as unisched_causes
from stretto.experiments.unisched import comparison as unisched
from stretto.experiments.unisched import estimator
from stretto.experiments.unisched import parts as unisched_parts
from stretto.suggestions import did_you_mean

LYRA = "its 15 days of training jobs and of inference load"
ALL_OF_PHILLY = "one simulation of stretto with all of Philly's 30,746 jobs takes four minutes of a core"
LYRA_TESTBED = "the 180 jobs and the inference load of its testbed"


def lyra(
    name: str,
    where: str,
    make: Callable[[Request], Made],
    simulations: int = 0,
    takes: str = "",
    not_whole: str = "",
    data: str = "inference",
    private: str = LYRA,
) -> Experiment:
    """An entry of Lyra, whose traces were never published."""
    paper = f"Lyra (EuroSys 2023), {where}"
    return Experiment(name, paper, data, make, simulations, takes, not_whole, private)


def ground(
    name: str, paper: str, data: str, of: Ground, simulations: int, takes: str = "", **more: Any
) -> Experiment:
    """An entry of a ground on which Stretto's own policy is held against that of a paper."""
    where = f"Stretto's own policy on the ground of {paper}"
    return Experiment(name, where, data, of.table, simulations, takes, causes=of.causes, **more)


EXPERIMENTS: Mapping[str, Experiment] = {
    one.name: one
    for one in (
        Experiment(
            "cornucopia-fig1",
            "Cornucopia, figure 1",
            "chronus",
            parts.figure1,
            6,
            "1 min",
            causes=cornucopia_causes.figure1,
        ),
        Experiment(
            "cornucopia-table1",
            "Cornucopia, table 1",
            "chronus",
            parts.table1,
            causes=cornucopia_causes.table1,
        ),
        Experiment("cornucopia-table3", "Cornucopia, table 3", "chronus", parts.table3),
        Experiment(
            "cornucopia-fig4",
            "Cornucopia, figures 4 and 5",
            "chronus",
            comparison.figure4,
            21,
            "28 min",
            causes=cornucopia_causes.figure4,
        ),
        Experiment(
            "cornucopia-fig6",
            "Cornucopia, figure 6",
            "chronus",
            comparison.figure6,
            39,
            "32 min",
            causes=cornucopia_causes.figure6,
        ),
        Experiment(
            "cornucopia-venus",
            "Cornucopia, figures 4 to 6 on Venus",
            "",
            comparison.venus,
            45,
            "28 min",
            causes=cornucopia_causes.venus,
        ),
        Experiment(
            "cornucopia-saturn",
            "Cornucopia, figures 4 to 6 on Saturn",
            "",
            comparison.saturn,
            45,
            not_whole="69,687 jobs ask for 2.5 to 7.5 times the clusters; a tenth of them is simulated",
            causes=cornucopia_causes.saturn,
            share=comparison.SATURN_SHARE,
        ),
        Experiment("cornucopia-fig7", "Cornucopia, figure 7", "chronus", parts.figure7, 3, "40 s"),
        Experiment("cornucopia-fig8", "Cornucopia, figure 8", "", parts.figure8, 15, "15 min"),
        Experiment(
            "cornucopia-fig9",
            "Cornucopia, figure 9",
            "chronus",
            comparison.figure9,
            12,
            causes=cornucopia_causes.figure9,
        ),
        Experiment("cornucopia-fig10", "Cornucopia, figure 10", "chronus", comparison.figure10, 12),
        Experiment("cornucopia-profile", "Cornucopia, section 4.3", "", parts.profile),
        Experiment(
            "one-for-all",
            "Stretto's own: all classes of jobs on one cluster",
            "",
            mixed.one_for_all,
            189,
            not_whole="189 simulations of up to five minutes each",
            causes=mixed_causes.one_for_all,
        ),
        ground("ground-sia", "Sia", "sia", specialists.SIA, 48, "6 min"),
        ground(
            "ground-unisched",
            "UniSched",
            "chronus",
            specialists.UNISCHED,
            54,
            not_whole=ALL_OF_PHILLY,
        ),
        ground("ground-lyra", "Lyra", "inference", specialists.LYRA, 10, "3 min"),
        ground("ground-ones", "ONES", "", specialists.ONES, 24, "8 min"),
        ground(
            "ground-cornucopia",
            "Cornucopia",
            "chronus",
            specialists.CORNUCOPIA,
            27,
            not_whole=ALL_OF_PHILLY,
        ),
        lyra("lyra-table5", "table 5", tables.table5, 48, "46 min"),
        lyra(
            "lyra-table5-percentiles", "tables 5 and 8, other trace", tables.table5_percentiles, 27, "16 min"
        ),
        lyra("lyra-table6", "table 6", tables.table6, 18, "42 min"),
        lyra("lyra-table9", "table 9", tables.table9, 15, "19 min"),
        lyra("lyra-fig10", "figure 10", lending.figure10, 18, "28 min"),
        lyra("lyra-fig13", "figure 13", lending.figure13, 15, "14 min"),
        lyra("lyra-forecast", "section 6", lending.forecasts, 0, "20 s"),
        lyra("lyra-table7", "table 7", lending.table7, 9, "7 min"),
        lyra("lyra-table8", "table 8", scaling.table8, 21, "24 min"),
        lyra("lyra-fig7", "figure 7", tables.figure7, 9, "14 min"),
        lyra("lyra-fig8", "figure 8", tables.figure8, 15, "30 min"),
        lyra("lyra-fig9", "figure 9", lending.figure9, 9, "8 min"),
        lyra("lyra-fig11", "figure 11", tables.figure11, 18, "18 min"),
        lyra("lyra-fig12", "figure 12", tables.figure12, 30, "21 min"),
        lyra("lyra-fig16", "figure 16", scaling.figure16, 33, "34 min"),
        lyra("lyra-reclaims", "section 7.2", lending.reclaims, 6, "14 min"),
        lyra(
            "lyra-table10",
            "table 10 and figure 17",
            testbed.table10,
            27,
            "1 min",
            data="",
            private=LYRA_TESTBED,
        ),
        lyra("lyra-fig14", "figures 14 and 15", scaling.figure14, 27, "29 min"),
        Experiment(
            "ones-fig2", "ONES (SC 2021), figure 2", "", speeds.figure2, 0, "1 s", causes=speeds.causes
        ),
        Experiment("ones-fig3", "ONES (SC 2021), figure 3", "", batches.figure3, 0, "20 s"),
        Experiment(
            "ones-fig13",
            "ONES (SC 2021), figures 13 and 14",
            "",
            batches.figure13,
            0,
            "1 min",
            causes=ones_causes.figure13,
        ),
        Experiment("ones-fig6", "ONES (SC 2021), figure 6", "", progress.figure6, 0, "3 s"),
        Experiment("ones-fig16", "ONES (SC 2021), figure 16", "", switches.figure16, 0, "1 min"),
        Experiment(
            "ones-fig15",
            "ONES (SC 2021), figure 15 and table 4",
            "",
            ones.figure15,
            12,
            "8 min",
            causes=ones_causes.figure15,
        ),
        Experiment(
            "ones-fig15-grown",
            "ONES (SC 2021), figure 15, other batches",
            "",
            ones.figure15_grown,
            12,
            "20 min",
            causes=ones_causes.figure15_grown,
        ),
        Experiment(
            "ones-fig17",
            "ONES (SC 2021), figure 17",
            "",
            ones.figure17,
            48,
            "6 min",
            causes=ones_causes.figure17,
        ),
        Experiment(
            "ones-fig17-grown",
            "ONES (SC 2021), figure 17, other batches",
            "",
            ones.figure17_grown,
            48,
            "11 min",
            causes=ones_causes.figure17_grown,
        ),
        Experiment("sia-table3", "Sia (SOSP 2023), table 3", "sia", sia.table3, 36, causes=sia_causes.table3),
        Experiment(
            "sia-table4",
            "Sia (SOSP 2023), table 4",
            "sia",
            sia.table4,
            25,
            "4 min",
            causes=sia_causes.table4,
        ),
        Experiment(
            "sia-fairness",
            "Sia (SOSP 2023), section 5.5",
            "sia",
            sia.fairness,
            20,
            "33 min",
            causes=sia_causes.fairness,
        ),
        Experiment(
            "sia-modes", "Sia (SOSP 2023), section 5.7", "sia", settings.modes, 15, causes=sia_causes.modes
        ),
        Experiment(
            "sia-fig1",
            "Sia (SOSP 2023), figure 1, right",
            "sia",
            settings.figure1,
            15,
            causes=sia_causes.figure1,
        ),
        Experiment("sia-fig2", "Sia (SOSP 2023), figure 2", "sia", figures.figure2),
        Experiment(
            "sia-fig4",
            "Sia (SOSP 2023), figures 4 and 5",
            "sia",
            figures.figure4,
            15,
            causes=sia_causes.figure4,
        ),
        Experiment("sia-fig6", "Sia (SOSP 2023), figure 6", "sia", figures.figure6, 15),
        Experiment(
            "sia-fig7",
            "Sia (SOSP 2023), figure 7",
            "sia",
            figures.figure7,
            75,
            "30 min",
            causes=sia_causes.figure7,
        ),
        Experiment("sia-gpt", "Sia (SOSP 2023), section 5.3", "sia", figures.gpt, 1),
        Experiment(
            "sia-fig10",
            "Sia (SOSP 2023), figure 10",
            "sia",
            settings.figure10,
            30,
            causes=sia_causes.figure10,
        ),
        Experiment("sia-fig11", "Sia (SOSP 2023), figure 11", "sia", settings.figure11, 25),
        Experiment("sia-scaling", "Sia (SOSP 2023), section 5.6, figure 9", "sia", sia.scaling, 6, "1 min"),
        Experiment("unisched-fig1", "UniSched (TPDS 2024), figure 1", "", estimator.figure1, 0, "1 s"),
        Experiment("unisched-fig3", "UniSched (TPDS 2024), figure 3", "", estimator.figure3, 0, "1 min"),
        Experiment(
            "unisched-table3",
            "UniSched (TPDS 2024), table III",
            "",
            unisched.table3,
            80,
            "8 min",
            causes=unisched_causes.table3,
        ),
        Experiment(
            "unisched-fig6",
            "UniSched (TPDS 2024), figures 6a and 6b",
            "chronus",
            unisched.figure6,
            168,
            not_whole="168 simulations, and one of 3Sigma takes over 16 minutes for 0.3 of the time",
            causes=unisched_causes.figure6,
        ),
        Experiment(
            "unisched-fig6cd",
            "UniSched (TPDS 2024), figures 6c and 6d",
            "",
            unisched.figure6_density,
            105,
            not_whole="a simulation of 3Sigma takes 4 minutes at density 1, and over 9 at density 1.2",
            causes=unisched_causes.figure6_density,
        ),
        Experiment(
            "unisched-fig7",
            "UniSched (TPDS 2024), figure 7",
            "",
            estimator.figure7,
            0,
            "3 s",
            causes=unisched_causes.figure7,
        ),
        Experiment(
            "unisched-fig8",
            "UniSched (TPDS 2024), figure 8",
            "chronus",
            estimator.figure8,
            12,
            "10 min",
            causes=unisched_causes.figure8,
        ),
        Experiment(
            "unisched-fig9",
            "UniSched (TPDS 2024), figure 9",
            "chronus",
            unisched_parts.figure9,
            132,
            not_whole="132 simulations of more than two minutes each",
        ),
        Experiment(
            "unisched-fig10",
            "UniSched (TPDS 2024), figure 10",
            "chronus",
            unisched_parts.figure10,
            48,
            "35 min",
        ),
        Experiment(
            "unisched-fig11", "UniSched (TPDS 2024), figure 11", "", unisched_parts.figure11, 30, "22 min"
        ),
        Experiment(
            "unisched-fig12",
            "UniSched (TPDS 2024), figure 12",
            "chronus",
            unisched.figure12,
            32,
            "22 min",
            causes=unisched_causes.figure12,
        ),
    )
}


def experiment_of(name: str) -> Experiment:
    """The experiment of this name; InputError for an unknown one."""
    if name not in EXPERIMENTS:
        raise InputError(f"unknown table {name!r}, {did_you_mean(name, EXPERIMENTS)}")
    return EXPERIMENTS[name]
