"""Results archives: one or more figures' results as an RO-Crate folder or one .tar.zst.

    layout      names in an archive, its manifest, which paths are allowed
    container   .tar.zst and the folders that archives are built in
    crate       ro-crate-metadata.json
    contents    what an archive says about its results, derived from the results alone
    packing     results -> archive
    checking    archive -> verified, and drawn again
    comparing   what moved between two archives
    cli         servelab archive pack|verify|unpack|diff|list

The format is described in results/README.md.
"""
