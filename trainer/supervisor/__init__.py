"""The supervisor of any training job: a zipapp that runs in any container with Python 3.8, on its standard library.

It speaks the contract of `trainer.builtin.agent` to the steward. It imports nothing else of `trainer`, whose packages a
container of somebody else does not have.
"""
