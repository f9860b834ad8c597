"""What follows from the series of switched assumptions, by table.

Figures are the page's affair: these are readings of them, and say which assumption stays, and why.
"""

from collections.abc import Mapping, Sequence

FINDINGS: Mapping[str, Sequence[str]] = {
    "ground-cornucopia": (
        "What counts here is the order of jobs. The mean is 4 % longer where q stays on a crowded cluster, "
        "and 7 % longer where it is 0",
        "Where a wait adds nothing to the time left, the mean is 25 % longer",
        "A bound on how long anybody waits costs 7 % of the mean on 320 GPUs, where most jobs wait",
    ),
    "ground-lyra": (
        "Without the belief that lenders take nodes back jobs wait less, and twice as many are preempted. "
        "Intervals are wide",
        "That a wait adds to the time left halves the queue",
    ),
    "ground-ones": (
        "Growth beyond what a model was seen on decides here. Without it jobs take 2.6 times as long on 16 "
        "GPUs, and 9 times on 64",
        "On 16 GPUs many jobs wait. Where a wait adds nothing they take 2.6 times as long, in draws that "
        "differ widely. With q of 0 they take an eighth longer",
    ),
    "ground-sia": (
        "Growth beyond what a model was seen on is worth a factor of three. All models are unknown at first "
        "here, so that nothing would grow without it",
        "Evidence of the model takes 4 % off the mean in place and 8 % by restart. Lifetimes and q take 5 % "
        "each. Deadlines, lenders and fairness have nothing to act on",
    ),
    "ground-unisched": (
        "That a wait adds to the time left counts most. Without it four times as many deadlines are missed",
        "Where a deadline makes a job count neither more nor less, a fifth more are missed on the full "
        "testbed. Jobs without a deadline take 12 % less. That is the price of deadlines",
        "A job whose deadline can wait counts as half of one. That takes 2 and 5 % off the time of jobs "
        "without one. On the full testbed 3 % fewer deadlines are missed without it",
        "Promises, doubt and patience change figures by no more than their intervals",
    ),
    "cornucopia-fig1": (
        "The paper has equation 2 of a job's inflation, and does not say over what 7.2 is. Over the "
        "mean run time the mean grows as much here, but with priorities and without",
        "Where labels do not follow run times, priority costs about what the paper says: half of the "
        "batch jobs call themselves interactive in that row. By the rule that gives the paper's "
        "counts, interactive jobs are the shortest, which come first anyway",
    ),
    "cornucopia-fig4": (
        "Under Cornucopia interactive jobs wait for each other alone. First come first served, without any "
        "batch job, they wait as long: on the eleventh day they want more GPUs than there are",
        "How long they wait under Tiresias hangs on its bounds, which the paper does not state",
    ),
    "cornucopia-table1": (
        "The paper publishes neither its curves nor its rule. Ours were measured on up to 8 GPUs a "
        "node, so only jobs of several nodes lose there",
        "The made jobs of Venus and Saturn have the published mean of GPUs, which many sizes can "
        "have. With the sizes and models of Philly far fewer are sub-linear",
    ),
    "cornucopia-fig9": (
        "A batch job that calls itself interactive is demoted once it has run for long, and waits "
        "with the batch jobs from then on. These waits are nearly all of the mean",
        "On the smallest cluster more interactive jobs overlap than there are GPUs, so some wait "
        "whatever the labels",
    ),
    "ones-fig2": (
        "In the catalogue a smaller batch than the paper's fits on a GPU, and averaging gradients was "
        "measured on other nodes",
        "Where the whole batch fits, and averaging takes several times as long, more than two workers "
        "gain next to nothing. The paper prints neither, so the catalogue stays",
    ),
    "ones-fig13": (
        "With steps of two in the place of four, or a rate that grows with the root of the batch, no "
        "loss rises here either",
        "The loss of this small training is near 0 when batches grow, so any step upwards is large. "
        "One seed makes most of the mean",
    ),
    "ones-fig15": (
        "ONES is further ahead than in the paper. Its jobs hardly wait here, where the paper's wait for "
        "87 s. The paper does not say for what",
        "Jobs of Optimus and of the learned scheduler run for twice as long as in the paper. Knowledge and "
        "shorter rounds explain a third of it at most. What is left is speeds by GPUs, which the paper does "
        "not print",
    ),
    "ones-fig17": (
        "ONES is further ahead than in the paper, most of all on 16 GPUs, where Tiresias and Optimus wait "
        "for long. With rounds of half the length Optimus comes half as far towards the paper there",
        "What a change of size costs decides much. As dear as a restart it leaves ONES behind Tiresias and "
        "the learned scheduler on 64 GPUs. The paper measures about a second, so that stays",
        "Where long jobs of ONES shrink whether any waits or not, it is behind all on 64 GPUs",
        "Where owners' batches grow with the GPUs, four of the six figures come nearer to the paper's. It "
        "does not print which batches its users asked for",
    ),
    "sia-fairness": (
        "The series is of the first of the five workloads, so its first row differs from the table",
        "The published simulator's clock and delays decide most. Without them Pollux treats more than twice "
        "as many jobs unfairly, half of what the paper has, and Gavel fewer than half as many",
        "How a share is counted, and how long Pollux searches, change less. No row brings its worst job to "
        "the paper's. Gavel's worst job hangs on its objective: by finish-time fairness it is at 1.2",
    ),
    "sia-fig1": (
        "The first type of a rigid job is chosen without regard to its speed, and costs Sia most. Chosen by "
        "its profile, Sia is ahead of Gavel by a quarter of what the paper says, and the interval is wider "
        "than that",
        "No switch of Sia alone gives the paper's figure. Gavel has the objective that the other tables "
        "have. With another one it is far behind",
    ),
    "sia-fig4": (
        "More load brings Sia further ahead of Gavel, and so do speeds that are known beforehand. Either is "
        "half of what is missing",
        "How Gavel shares, and how Sia chooses a first type, change next to nothing. The paper publishes "
        "neither the 30 jobs of its testbed nor their arrivals, so ours stay as they were drawn",
    ),
    "sia-fig10": (
        "Rounds of 30 s and of 60 s do not differ: what is between them is less than chance. In the paper's "
        "world it even has the paper's sign",
    ),
    "sia-modes": (
        "What No-Prof hopes of a type that a job has not tried decides. Where it hopes for nothing, "
        "Bootstrap is as far ahead as in the paper, which does not say what No-Prof supposes",
        "Where a profile takes 120 s, or chooses the first type, Bootstrap is as far behind the oracle as "
        "in the paper",
    ),
    "sia-fig7": (
        "The series is of the first made trace at 10 jobs an hour. No switch brings Sia beyond 0.61 "
        "of the paper's figure, and known speeds are worth little",
        "The paper's table 3 has 0.7 h beside Pollux's 1.0 h on Helios, at 20 jobs an hour: 30 % shorter. "
        '"50-65%", as it is read here, does not go with that',
        "The gap closes as more jobs arrive. The paper says so of its newTrace: at a peak both policies "
        "scale jobs down to one GPU",
    ),
    "sia-table4": (
        "The files have what was tuned for the mixed cluster, 16 GPUs at most. Tuned anew, the three stand "
        "in the paper's order of GPU hours, and Shockwave's come out",
        "No job that is tuned within the paper's limits takes more than the last row, if it is alone. All "
        "three have more in the paper, so a part of its GPU hours is not training",
        "Tuned anew, makespans hang on one draw: an ImageNet job that draws two GPUs runs for five days, "
        "whatever the policy",
    ),
    "unisched-fig6": (
        "UniSched puts the leases of deadlines as far to the end as they allow, for the sake of best effort. "
        "Without that it misses hardly more than Themis. Its objective asks for it, so the table keeps it",
        "Themis misses few deadlines here in every row, also with the auctions of its own paper. In the "
        "paper it misses at least twice as many as UniSched",
        "Beside Hydra UniSched is ahead in every row, as in the paper",
    ),
    "unisched-fig6cd": (
        "On 960 GPUs a tenth of the arrivals misses next to no deadline, so that some policy misses none. "
        "Ratios of a few misses mean little",
        "On a third of the GPUs, which these arrivals fill, the least ratio is 0.7 in the place of 0. No "
        "switch brings the largest to the paper's",
    ),
    "unisched-fig7": (
        "Equation 2 has the exchange of gradients grow with the number of GPUs. In a ring it hardly "
        "does. That is why its error grows with the GPUs",
        "Measured iterations are of a3c, Transformer and gan, whose batch of a GPU stays the same. On "
        "which GPUs and nodes they were measured is not documented",
    ),
    "unisched-fig8": (
        "How often a job with a deadline is stopped hangs on how full the cluster is. On the smaller one, or "
        "with 1.6 times the jobs, it is two to three times, within the paper's range. The table keeps the "
        "size and the density of the paper's other figures",
        "The paper does not say whether a suspension and its resumption count as one. As two, the least of "
        "our figures is the paper's",
        "Every rule that puts off or profiles a job stops it more often. None of them explains six times",
    ),
    "unisched-fig12": (
        "On Philly's jobs Chronus misses 62 %, as their bursts wait for its 16 profiling GPUs. With "
        "durations known at once it misses 3 %, fewer than UniSched. With 64 GPUs for profiles UniSched is "
        "8 points ahead, near the paper's 5",
        "The made jobs of Venus come more evenly. There UniSched is 2 points ahead in this draw, and 4 over "
        "three",
        "The estimator takes nothing off the misses of Chronus in any row. Why it does in the paper was not "
        "found",
    ),
    "unisched-table3": (
        "Table III calls its second column the mean completion time of jobs. Section IV-C defines it "
        "over best-effort jobs, so both are shown",
        "The last row is a bound: no schedule misses less on these samples, whatever it knows",
        "What the sample asks for decides most: with one GPU a job UniSched misses 7 and 25 %. That is "
        "one and a half times the paper's, and nearly twice. Waiting for a profile comes next, then jobs "
        "that no whole leases fit",
        "The paper prints neither the GPU time of its sample nor its run times. So ours stays as it "
        "was drawn from Venus",
    ),
    "cornucopia-venus": (
        "The series is of the first draw, on the smallest cluster. The largest reduction is beside "
        "ElasticFlow, which serves by submission. Whether it knows what is left changes nothing",
        "Without ElasticFlow 3 % are left, beside Tiresias. With one bound Tiresias is 60 % behind. So its "
        "bounds, which the paper does not state, are worth several times the paper's figure",
        "Chronus, which is told durations, is far ahead in every row",
    ),
    "cornucopia-saturn": (
        "The series is of the first draw, on the smallest cluster. Without ElasticFlow the largest reduction "
        "is that beside Tiresias there, and it is the paper's. ElasticFlow serves by submission on clusters "
        "that are asked for several times their size",
        "With half of the jobs, or on the next larger cluster, no mean is shorter under Cornucopia by more "
        "than 1 %. So the figure hangs on how crowded the cluster is. Draws differ: over three of them "
        "Cornucopia is 39 % below Chronus on the largest cluster",
    ),
    "sia-table3": (
        "Pollux has the paper's p99 on Philly where its search is a tenth as long, and more restarts. So its "
        "search may find better shares here than it did for the paper. Without the clock and delays of the "
        "published simulator it comes to the same",
        "The series of newTrace is of its first quarter, where Gavel's backlog is a third of the later one. "
        "No switch changes it by more than a fifth",
        "On newTrace Gavel's mean is that of the paper, and Sia's is longer. Two of its ten files are here."
        " On the first day of one the simulator of Sia's authors has Sia's mean, too, within 1 %",
        "A first start that counts as a restart would bring Pollux's restarts to the paper's",
    ),
    "cornucopia-fig6": (
        "On 320 and 640 GPUs the largest reduction is beside ElasticFlow, which serves by submission. On 960 "
        "GPUs it is beside Chronus, and the paper's",
        "On 320 GPUs inflation is larger under Cornucopia than under Tiresias and Chronus in every row. "
        "Where no job leaves the first queue it is a third less",
    ),
    "ones-fig15-grown": (
        "With the models' usual batches ONES is far ahead of all three. Where batches grow with the GPUs "
        "asked for, Tiresias has a fitting batch on every GPU, and ONES has nothing to win beside it",
        "No switch of Optimus brings its execution time near the paper's. With rounds of half the length it "
        "comes nearest in completion time",
    ),
    "ones-fig17-grown": (
        "Optimus waits for half of its round of 10 minutes. With rounds of half the length the paper's "
        "distance is reproduced on 64 GPUs, and lies within the interval on 16. What it is told adds little",
        "The batches that owners ask for decide on the distance to Tiresias. With the models' usual batches "
        "ONES is further ahead of it, on 64 GPUs as far as in the paper",
    ),
}
