"""What goes along an index, round by round: running sums and products, extremes, last rounds."""
