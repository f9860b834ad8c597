"""Three policies on a made workload, in cells of a notebook: which job waited longest, which policy is best?

Editors show the lines that begin with `# %%` as borders of cells; `python compare_policies.py` runs them all.
It needs neither a GPU nor PyTorch, and pandas only if frames are to be pandas'.
"""

# %% One run: in a notebook, its last line shows the picture.
import stretto

sia = stretto.simulate("demo", cluster="sia-hetero-64", policy="sia")
print(sia)
sia

# %% Its frames: which job waited longest?
longest = sia.jobs["queue_s"].argmax()
print(f"{sia.jobs['job'][longest]} waited {sia.jobs['queue_s'][longest]:.1f} s")

# %% Two others beside it.
others = [stretto.simulate("demo", cluster="sia-hetero-64", policy=name) for name in ("fifo", "gavel")]
runs = sia.compare(others)
for policy, jct_s in zip(runs.policies["policy"], runs.policies["avg_jct_s"], strict=True):
    print(f"{policy}: a job takes {jct_s / 60:.1f} min on average")
runs

# %% The page to pass on.
# runs.write("report.html")
