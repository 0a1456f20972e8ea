"""`import slime.…` for existing plug-ins: slime's names, with our objects behind them, where no slime is installed.

`names` says what stands for what, `finder` has Python ask there. The other modules hold what slime has and nobody else
here needs.
"""
