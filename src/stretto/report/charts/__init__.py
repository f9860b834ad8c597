"""What does it look like? One kind of chart per file, drawn as SVG from standings and runs."""
